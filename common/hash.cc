#include "common/hash.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include "absl/strings/escaping.h"
#include "common/check.h"

namespace ridge {
namespace {

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

std::string FastDigest(absl::Span<const char> data) {
  // Looked up once, and never freed.
  static EVP_MAC* const gmac = EVP_MAC_fetch(nullptr, "GMAC", nullptr);
  RIDGE_CHECK(gmac != nullptr);
  const std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)> context(EVP_MAC_CTX_new(gmac),
                                                                          EVP_MAC_CTX_free);
  char cipher[] = "AES-128-GCM";
  unsigned char nonce[12] = {};
  const unsigned char key[16] = {};
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, cipher, 0),
      OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, nonce, sizeof(nonce)),
      OSSL_PARAM_construct_end(),
  };
  RIDGE_CHECK(EVP_MAC_init(context.get(), key, sizeof(key), parameters) == 1);
  RIDGE_CHECK(
      EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(data.data()), data.size()) == 1);
  std::string digest(16, '\0');
  size_t size = 0;
  RIDGE_CHECK(EVP_MAC_final(context.get(), reinterpret_cast<unsigned char*>(digest.data()), &size,
                            digest.size()) == 1);
  RIDGE_CHECK(size == digest.size());
  return digest;
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
