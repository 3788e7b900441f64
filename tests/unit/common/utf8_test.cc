#include "common/utf8.h"

#include <gtest/gtest.h>

namespace ridge {
namespace {

// Both ends of each row of the table of well-formed sequences.
constexpr absl::string_view kValid[] = {
    "",
    "plain",
    "a longer line of ASCII, then \xC3\xA9",
    "\x7F",
    "\xC2\x80",
    "\xDF\xBF",
    "\xE0\xA0\x80",
    "\xE0\xBF\xBF",
    "\xE1\x80\x80",
    "\xED\x9F\xBF",
    "\xEE\x80\x80",
    "\xEF\xBF\xBF",
    "\xF0\x90\x80\x80",
    "\xF3\xBF\xBF\xBF",
    "\xF4\x8F\xBF\xBF",
    absl::string_view("nul\0inside", 10),
};

struct Broken {
  absl::string_view text;
  absl::string_view replaced;
};

#define U "\xEF\xBF\xBD"

// The right column is what Python's decode("utf-8", "replace") gives.
constexpr Broken kBroken[] = {
    {"\x80\xFF", U U},        // stray continuation, impossible byte
    {"\xC0\xAF", U U},        // overlong, 2 bytes
    {"\xC1\x81", U U},        // overlong, 2 bytes
    {"\xE0\x80\xAF", U U U},  // overlong, 3 bytes
    {"\xF0\x80\x80"           // overlong, 4 bytes
     "A",
     U U U "A"},
    {"\xED\xA0\x80x", U U U "x"},        // surrogate
    {"\xED\xBF\xBF", U U U},             // surrogate
    {"\xF4\x90\x80\x80", U U U U},       // above U+10FFFF
    {"\xF5\x80\x80\x80", U U U U},       // impossible lead
    {"a\xE2\x82z", "a" U "z"},           // cut off in the middle: one part
    {"\xF0\x9F\x98", U},                 // cut off at the end: one part
    {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"  // four cut off in a row
     "A",
     U U U U "A"},
    {"eight or more ASCII first \xFF!", "eight or more ASCII first " U "!"},
};

TEST(Utf8Test, AcceptsEveryWellFormedRange) {
  for (const absl::string_view text : kValid) {
    EXPECT_TRUE(IsValidUtf8(text)) << testing::PrintToString(std::string(text));
    EXPECT_EQ(ReplaceInvalidUtf8(text), text);
    EXPECT_EQ(IncompleteUtf8Suffix(text), 0u);
  }
}

TEST(Utf8Test, RefusesAndReplacesIllFormedParts) {
  for (const Broken& broken : kBroken) {
    EXPECT_FALSE(IsValidUtf8(broken.text)) << testing::PrintToString(std::string(broken.text));
    EXPECT_EQ(ReplaceInvalidUtf8(broken.text), broken.replaced);
  }
}

TEST(Utf8Test, FindsAnIllFormedByteAtAnyPlace) {
  for (size_t place = 0; place < 40; ++place) {
    std::string text(40, 'a');
    text[place] = '\xC3';
    EXPECT_FALSE(IsValidUtf8(text)) << place;
    if (place + 1 < text.size()) {
      text[place + 1] = '\xA9';
      EXPECT_TRUE(IsValidUtf8(text)) << place;
    }
  }
}

TEST(Utf8Test, CountsTheBytesOfAnUnfinishedCharacter) {
  EXPECT_EQ(IncompleteUtf8Suffix("a\xC3"), 1u);
  EXPECT_EQ(IncompleteUtf8Suffix("a\xE2"), 1u);
  EXPECT_EQ(IncompleteUtf8Suffix("a\xE2\x82"), 2u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xF0"), 1u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xF0\x9F"), 2u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xFF\xF0\x9F\x98"), 3u);
}

TEST(Utf8Test, WhatCannotBecomeACharacterIsNotUnfinished) {
  EXPECT_EQ(IncompleteUtf8Suffix("\x80"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xC0"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xF5"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xE0\x80"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xED\xA0"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xF4\x90"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xC3\xA9\xA9"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("\x80\x80\x80\x80"), 0u);
}

}  // namespace
}  // namespace ridge
