// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw (2011): random words as a pure
// function of a key and a counter, the same on every device.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/math.h"

namespace ridge::kernels {

using PhiloxCounter = std::array<uint32_t, 4>;

RIDGE_HD inline PhiloxCounter Philox4x32(PhiloxCounter counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace ridge::kernels
