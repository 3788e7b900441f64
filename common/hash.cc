#include "common/hash.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/check.h"

namespace ridge {
namespace {

constexpr size_t kPieceBytes = size_t{16} << 20;

void FillRandom(unsigned char* out, int size) {
  RIDGE_CHECK(RAND_bytes(out, size) == 1);
}

}  // namespace

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  RIDGE_CHECK(EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Update(absl::string_view data) {
  RIDGE_CHECK(EVP_DigestUpdate(context_->evp, data.data(), data.size()) == 1);
}

std::string Sha256::Digest() {
  std::string digest(32, '\0');
  unsigned int size = 0;
  RIDGE_CHECK(EVP_DigestFinal_ex(context_->evp, reinterpret_cast<unsigned char*>(digest.data()), &size) == 1);
  return digest;
}

std::string Sha256::HexDigest() {
  return absl::BytesToHexString(Digest());
}

std::string TreeSha256Hex(absl::Span<const char> data) {
  const size_t num_pieces = (data.size() + kPieceBytes - 1) / kPieceBytes;
  std::vector<std::string> digests(num_pieces);
  std::atomic<size_t> next_piece{0};
  const auto hash_pieces = [&] {
    for (size_t piece = next_piece++; piece < num_pieces; piece = next_piece++) {
      const auto bytes = data.subspan(piece * kPieceBytes, kPieceBytes);
      Sha256 hash;
      hash.Update(absl::string_view(bytes.data(), bytes.size()));
      digests[piece] = hash.Digest();
    }
  };
  std::vector<std::thread> threads;
  const size_t num_threads = std::min<size_t>(num_pieces, std::max(1u, std::thread::hardware_concurrency()));
  for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(hash_pieces);
  hash_pieces();
  for (std::thread& thread : threads) thread.join();

  Sha256 root;
  for (const std::string& digest : digests) root.Update(digest);
  return root.HexDigest();
}

uint64_t RandomUint64() {
  uint64_t value;
  FillRandom(reinterpret_cast<unsigned char*>(&value), sizeof(value));
  return value;
}

std::string RandomId() {
  std::string bytes(16, '\0');
  FillRandom(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  return absl::BytesToHexString(bytes);
}

}  // namespace ridge
