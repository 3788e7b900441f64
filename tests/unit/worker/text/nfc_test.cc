#include "worker/text/nfc.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

std::string Utf8(uint32_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
}

TEST(Nfc, Composes) {
  EXPECT_EQ(*NormalizeNfc("e\u0301"), "\u00e9");
  EXPECT_EQ(*NormalizeNfc("\u212b"), "\u00c5");
  EXPECT_EQ(*NormalizeNfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(*NormalizeNfc("\u1100\u1161\u11a8"), "\uac01");
}

// U+1AC4 and U+1E08F combine since Unicode 14 and 15, U+11935 and U+11930 compose since 13.
TEST(Nfc, CharactersNewerThanUnicode9StandForThemselves) {
  EXPECT_EQ(*NormalizeNfc("a\u0345\u0301"), "\u00e1\u0345");
  for (const char* text : {"a\u0345\u1ac4", "a\u0345\U0001e08f", "a\u1ac4\u0301", "\U00011935\U00011930"}) {
    EXPECT_EQ(*NormalizeNfc(text), text);
  }
}

TEST(Nfc, CombiningCharactersAreNotPlain) {
  EXPECT_TRUE(IsPlainlyNfc("plain \u00e9 \u4e2d\u6587 \ud55c\uad6d \U0001f600 \u041f"));
  for (const char* text :
       {"e\u0301", "\u212b", "\uac00\u11a8", "\u304b\u3099", "\uf900", "\u2000", "\u0958"}) {
    EXPECT_FALSE(IsPlainlyNfc(text)) << text;
  }
}

// What is plainly in the form is in the form: every character alone, and any of them in a row.
TEST(Nfc, LeavesPlainTextAlone) {
  std::vector<std::string> plain;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text = Utf8(code);
    if (!IsPlainlyNfc(text)) continue;
    ASSERT_EQ(*NormalizeNfc(text), text) << std::hex << code;
    plain.push_back(std::move(text));
  }
  EXPECT_GT(plain.size(), 80000u);
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 50; ++i) text += plain[random() % plain.size()];
    ASSERT_EQ(*NormalizeNfc(text), text);
  }
}

}  // namespace
}  // namespace ridge::worker
