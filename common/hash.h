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

// SHA-256 over the concatenated SHA-256 digests of the data's pieces of 16 MiB (the last one shorter), in
// hex. Pieces are hashed in parallel, so that gigabytes take no longer than reading them.
std::string TreeSha256Hex(absl::Span<const char> data);

uint64_t RandomUint64();

// 32 hex digits, unique for all purposes.
std::string RandomId();

}  // namespace ridge
