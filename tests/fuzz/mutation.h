// Seeded damage to files.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>

namespace ridge {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  uint64_t Below(uint64_t limit) { return random_() % limit; }

  // One to four changes within the first `length` bytes, of the kinds that readers of binary formats fall
  // over.
  std::string Binary(std::string data, size_t length) {
    for (uint64_t count = 1 + Below(4); count > 0; --count) {
      length = std::min(length, data.size());
      if (length < 16) return data;
      const size_t at = Below(length - 8);
      switch (Below(8)) {
        case 0:
          data[at] = static_cast<char>(data[at] ^ (1 << Below(8)));
          break;
        case 1:
          data[at] = static_cast<char>(Below(256));
          break;
        case 2:
          Overwrite(data, at, static_cast<uint32_t>(Interesting()));
          break;
        case 3:
          Overwrite(data, at, Interesting());
          break;
        case 4:  // a count or a length that is off by a little
          Overwrite(data, at, static_cast<uint32_t>(data[at]) + static_cast<uint32_t>(Below(5)) - 2);
          break;
        case 5:
          data.erase(at, 1 + Below(16));
          break;
        case 6:
          data.insert(at, std::string(1 + Below(16), static_cast<char>(Below(256))));
          break;
        default:
          data.insert(at, data.substr(Below(length), 1 + Below(64)));
      }
    }
    return data;
  }

  // The same for text that is JSON: whole values are replaced, too.
  std::string Json(std::string text, size_t length) {
    static constexpr const char* kValues[] = {"null",
                                              "true",
                                              "-1",
                                              "0",
                                              "1e999",
                                              "0.5",
                                              "4294967296",
                                              "18446744073709551616",
                                              "\"\"",
                                              "\"x\"",
                                              "[]",
                                              "{}",
                                              "[[]]",
                                              "{\"a\":{}}",
                                              "[1,2,3,4,5,6,7,8,9]",
                                              "\"\\u0000\"",
                                              "\"\\ud800\"",
                                              "65536",
                                              "1e-300"};
    for (uint64_t count = 1 + Below(3); count > 0; --count) {
      length = std::min(length, text.size());
      if (length < 16) return text;
      if (Below(3) == 0) {
        text = Binary(std::move(text), length);
        continue;
      }
      // From a colon or a comma to the next delimiter.
      const size_t begin = text.find_first_of(":,[", Below(length));
      if (begin == std::string::npos || begin >= length) continue;
      const size_t end = text.find_first_of(",}]", begin + 1);
      if (end == std::string::npos) continue;
      text.replace(begin + 1, end - begin - 1, kValues[Below(std::size(kValues))]);
    }
    return text;
  }

 private:
  uint64_t Interesting() {
    static constexpr uint64_t kValues[] = {0,          1,          2,          7,          31,
                                           32,         33,         255,        256,        65535,
                                           65536,      0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x100000000,
                                           1ull << 48, 1ull << 62, 1ull << 63, ~0ull - 31, ~0ull};
    return kValues[Below(std::size(kValues))];
  }

  template <typename T>
  static void Overwrite(std::string& data, size_t at, T value) {
    if (at + sizeof(T) <= data.size()) std::memcpy(&data[at], &value, sizeof(T));
  }

  std::mt19937_64 random_;
};

}  // namespace ridge
