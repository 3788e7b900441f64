// SHA-256 and randomness of the system, from OpenSSL. Free functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ridge {

class Sha256 {
 public:
  Sha256();
  ~Sha256();

  void Update(absl::string_view data);
  // The 32 bytes of the digest; the last call.
  std::string Digest();
  // The same as 64 hex digits.
  std::string HexDigest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// 16 bytes that differ where data differ, at the speed of memory: AES-128-GMAC with a key and a nonce of
// zeros. For gigabytes that changed by accident or were replaced. Who can choose the data can make two of the
// same digest; SHA-256 is for those.
std::string FastDigest(absl::Span<const char> data);

uint64_t RandomUint64();

// 32 hex digits, unique for all purposes.
std::string RandomId();

}  // namespace ridge
