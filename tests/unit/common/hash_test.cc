#include "common/hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "absl/strings/escaping.h"

namespace ridge {
namespace {

std::string Sha256Hex(absl::string_view data) {
  Sha256 hash;
  hash.Update(data);
  return hash.HexDigest();
}

// The vectors of FIPS 180-2.
TEST(Sha256Test, MatchesTheStandardsVectors) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256Test, PiecesHashLikeTheWhole) {
  Sha256 hash;
  hash.Update("a");
  hash.Update("");
  hash.Update("bc");
  EXPECT_EQ(hash.HexDigest(), Sha256Hex("abc"));
}

// Expected values from `openssl mac -cipher AES-128-GCM -macopt hexiv:0... -macopt hexkey:0... GMAC`.
TEST(FastDigestTest, IsGmacWithAKeyOfZeros) {
  const auto hex = [](absl::string_view data) {
    return absl::BytesToHexString(FastDigest(absl::MakeConstSpan(data.data(), data.size())));
  };
  EXPECT_EQ(hex(""), "58e2fccefa7e3061367f1d57a4e7455a");
  EXPECT_EQ(hex("abc"), "258281014dcf7bc2eac3be27cc039fb4");
  EXPECT_EQ(hex(std::string(1000000, 'a')), "999f6e8e8f908ca9f6d49a03686c4b8e");
}

TEST(FastDigestTest, EveryByteCountsAndSoDoesTheLength) {
  std::string data(100, '\0');
  std::set<std::string> digests = {FastDigest({data.data(), 100}), FastDigest({data.data(), 99})};
  for (char& byte : data) {
    byte = 1;
    digests.insert(FastDigest({data.data(), 100}));
    byte = 0;
  }
  EXPECT_EQ(digests.size(), 102u);
}

TEST(RandomTest, IdsAre32HexDigitsAndDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = RandomId();
    EXPECT_EQ(id.size(), 32u);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), 1000u);
}

TEST(RandomTest, NumbersUseAll64Bits) {
  uint64_t ever_set = 0, always_set = ~uint64_t{0};
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = RandomUint64();
    ever_set |= value;
    always_set &= value;
  }
  EXPECT_EQ(ever_set, ~uint64_t{0});
  EXPECT_EQ(always_set, 0u);
}

}  // namespace
}  // namespace ridge
