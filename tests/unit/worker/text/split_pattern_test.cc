#include "worker/text/split_pattern.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Behavior = SplitStep::Behavior;

std::vector<std::string> Cut(const SplitStep& step, const std::string& text) {
  const auto pattern = SplitPattern::Compile(step);
  EXPECT_TRUE(pattern.ok()) << pattern.status();
  SplitScratch scratch;
  scratch.Begin(text.size());
  std::vector<std::string> pieces;
  const absl::Status status = pattern->Split(text, scratch, [&](absl::string_view piece) {
    pieces.emplace_back(piece);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return pieces;
}

// What Hugging Face's Split does with the same.
TEST(SplitPattern, BehavesAsEachBehaviorSays) {
  const std::string text = "the-final--countdown-";
  EXPECT_THAT(Cut({"-", Behavior::kIsolated}, text),
              ElementsAre("the", "-", "final", "-", "-", "countdown", "-"));
  EXPECT_THAT(Cut({"-", Behavior::kRemoved}, text), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(Cut({"-", Behavior::kMergedWithPrevious}, text),
              ElementsAre("the-", "final-", "-", "countdown-"));
  EXPECT_THAT(Cut({"-", Behavior::kMergedWithNext}, text),
              ElementsAre("the", "-final", "-", "-countdown", "-"));
  EXPECT_THAT(Cut({"-", Behavior::kContiguous}, text),
              ElementsAre("the", "-", "final", "--", "countdown", "-"));
}

TEST(SplitPattern, InvertsWhatIsAMatch) {
  EXPECT_THAT(Cut({"[a-z]+", Behavior::kRemoved, true}, "the-final--x"), ElementsAre("the", "final", "x"));
  EXPECT_THAT(Cut({"[a-z]+", Behavior::kMergedWithPrevious, true}, "-a--b"), ElementsAre("-", "a--", "b"));
}

TEST(SplitPattern, AMatchOfNothingCutsAndGoesOn) {
  EXPECT_THAT(Cut({"x*"}, "abxxc"), ElementsAre("a", "b", "xx", "c"));
  EXPECT_THAT(Cut({"(?=b)"}, "aabcb"), ElementsAre("aa", "bc", "b"));
  EXPECT_THAT(Cut({"x*"}, "\u00e9\u4e2d"), ElementsAre("\u00e9", "\u4e2d"));
}

TEST(SplitPattern, WhiteSpaceIsUnicodes) {
  EXPECT_THAT(Cut({"\\s+", Behavior::kRemoved}, "a\u0085b\u3000c\u180ed"), ElementsAre("a", "b", "c\u180ed"));
  EXPECT_THAT(Cut({"[^\\s,]+", Behavior::kRemoved, true}, "a\u2003b,c\u180e"),
              ElementsAre("a", "b", "c\u180e"));
  EXPECT_THAT(Cut({"\\S+", Behavior::kRemoved, true}, "a \u180e"), ElementsAre("a", "\u180e"));
}

TEST(SplitPattern, KnowsUnicode16sLettersAndNumbers) {
  // U+322F4 and U+1C8A are newer than Unicode 14; U+10D40 is a digit of Unicode 16.
  EXPECT_THAT(Cut({"\\p{L}+"}, "a\U000322f4\u1c8a1"), ElementsAre("a\U000322f4\u1c8a", "1"));
  EXPECT_THAT(Cut({"[^\\p{L}\\p{N}]+"}, "a\U000322f4!\U00010d40"),
              ElementsAre("a\U000322f4", "!", "\U00010d40"));
  EXPECT_THAT(Cut({"\\P{N}+"}, "a\U00010d40"), ElementsAre("a", "\U00010d40"));
}

TEST(SplitPattern, AnchorsAtLines) {
  EXPECT_THAT(Cut({"^a", Behavior::kRemoved}, "ab\nac"), ElementsAre("b\n", "c"));
}

TEST(SplitPattern, RefusesWhatTheDialectsReadDifferently) {
  for (const char* regex :
       {"\\h",     "\\v",         "\\w+",          "[^\\W]",      "\\bx",    "x\\B",         "\\G",
        "\\Qa\\E", "[[:alpha:]]", "[[:^digit:]]",  "[a[b]]",      "[a&&b]",  "[\\P{L}]",     "[\\D]",
        "\\p{Mn}", "\\p{Greek}",  "\\p{Nonsense}", "(?m:.)",      "(*UTF)a", "a{1,2}+",      "a{2}?",
        "a{,2}",   "(?i:ss)",     "(?i:Fi)",       "(?i:\u00e9)", "\\K",     "(?<x>a)\\k<x>"}) {
    const absl::Status status = SplitPattern::Compile({regex}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << regex << ": " << status;
  }
  for (const char* regex : {"(", "[a", "a**", "\\p{", "\\", "(?<=a*)"}) {
    const absl::Status status = SplitPattern::Compile({regex}).status();
    EXPECT_FALSE(status.ok()) << regex;
  }
  EXPECT_TRUE(
      SplitPattern::Compile({"[[:digit:][:space:]]|[]a]|[^]a]|(?i:x)|(?:y)|(?=z)|(?<!q)r|b{2}|c{1,}?|{"})
          .ok());
}

// Each as the `tokenizers` package cuts it.
TEST(SplitPattern, ReadsClassesAsOnigurumaDoes) {
  EXPECT_THAT(Cut({"\\d+"}, "a1\U00010d40b\u00b2"), ElementsAre("a", "1\U00010d40", "b\u00b2"));
  EXPECT_THAT(Cut({"[[:digit:]]+"}, "a1\U00010d40"), ElementsAre("a", "1\U00010d40"));
  EXPECT_THAT(Cut({"\\D+"}, "1ab"), ElementsAre("1", "ab"));
  EXPECT_THAT(Cut({"[[:space:]]+"}, "a \u0085b\u180e"), ElementsAre("a", " \u0085", "b\u180e"));
  EXPECT_THAT(Cut({"[\\s\\S]+"}, "a\u180eb"), ElementsAre("a\u180eb"));
  // U+1B4E and U+1FAE9 are newer than Unicode 14.
  EXPECT_THAT(Cut({"\\p{P}+"}, "a!\u1b4eb"), ElementsAre("a", "!\u1b4e", "b"));
  EXPECT_THAT(Cut({"[\\p{P}\\p{S}]+"}, "a+\U0001fae9b"), ElementsAre("a", "+\U0001fae9", "b"));
  // U+3001 is used with Han, and is not of that script; U+31350 is newer.
  EXPECT_THAT(Cut({"\\p{Han}+"}, "a\u4e2d\U00031350\u3001"), ElementsAre("a", "\u4e2d\U00031350", "\u3001"));
}

// Both would take years: one match of 2^200 steps, and a million matches of a million steps each.
TEST(SplitPattern, BoundsTheWork) {
  for (const auto& [regex, text] :
       {std::pair<std::string, std::string>{"(a+)+$", std::string(200, 'a') + "b"},
        {"a(?=a*b)|c", std::string(1'000'000, 'a') + "cb"}}) {
    const auto pattern = SplitPattern::Compile({regex});
    ASSERT_TRUE(pattern.ok());
    SplitScratch scratch;
    scratch.Begin(regex.size());
    const absl::Status status =
        pattern->Split(text, scratch, [](absl::string_view) { return absl::OkStatus(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << regex;
    EXPECT_THAT(std::string(status.message()), HasSubstr("too hard"));
  }
}

TEST(SplitPattern, LongRunsAreNoWork) {
  for (const char* unit : {" ", "a", "\n", "1", "!", "\u4e2d", "\U0001f600", " \n"}) {
    std::string text;
    while (text.size() < 4'000'000) text += unit;
    const auto pieces = Cut({"(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                             "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
                            text);
    std::string joined;
    for (const std::string& piece : pieces) joined += piece;
    EXPECT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace ridge::worker
