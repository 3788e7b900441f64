#include "common/hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

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

// Expected values from Python's hashlib, by the definition in the header.
TEST(TreeSha256Test, HashesTheDigestsOfPiecesOf16MiB) {
  EXPECT_EQ(TreeSha256Hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(TreeSha256Hex({"abc", 3}), "4f8b42c22dd3729b519ba6f68d2da7cc5b2d606d05daed5ad5128cc03e6c6358");
  const std::string piece(size_t{16} << 20, 'a');
  EXPECT_EQ(TreeSha256Hex({piece.data(), piece.size()}),
            "63074e823f2f15d16824c388c803fb870fe7130df003f1b31fad76d0b3237644");
}

TEST(TreeSha256Test, KeepsTheOrderOfPieces) {
  std::vector<char> data((size_t{32} << 20) + 5, 0);
  for (size_t i = 0; i < data.size(); i += 4096) data[i] = static_cast<char>((i / 4096) % 251);
  EXPECT_EQ(TreeSha256Hex(data), "2fc19c6f5320064faafb8a22a6178efdabaf60e84258182f411fe62929fd8ebb");
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
