#include "worker/text/stop_matcher.h"

#include <random>

#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

TEST(StopMatcher, PassesTextThroughWithoutStops) {
  StopMatcher matcher({}, false);
  EXPECT_EQ(matcher.Push("abc").text, "abc");
}

TEST(StopMatcher, HoldsBackWhatMayBeginAStopAndMatchesAcrossPieces) {
  StopMatcher matcher({"STOP"}, false);
  EXPECT_EQ(matcher.Push("go ST").text, "go ");
  EXPECT_EQ(matcher.Push("A").text, "STA");
  EXPECT_EQ(matcher.Push("xS").text, "x");
  EXPECT_EQ(matcher.Push("TO").text, "");
  const StopMatcher::Result result = matcher.Push("P and more");
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.matched, 0);
}

TEST(StopMatcher, KeepsTheStopWhereAsked) {
  StopMatcher matcher({"END"}, true);
  EXPECT_EQ(matcher.Push("the E").text, "the ");
  EXPECT_EQ(matcher.Push("ND!").text, "END");
}

TEST(StopMatcher, FlushesAnUnfinishedStop) {
  StopMatcher matcher({"\n\n"}, false);
  EXPECT_EQ(matcher.Push("a\n").text, "a");
  EXPECT_EQ(matcher.Flush(), "\n");
}

TEST(StopMatcher, TheMatchThatEndsFirstWinsThenTheOneThatStartsFirst) {
  StopMatcher first_end({"abcd", "bc"}, false);
  StopMatcher::Result result = first_end.Push("xabcd");
  EXPECT_EQ(result.text, "xa");
  EXPECT_EQ(result.matched, 1);

  StopMatcher same_end({"cd", "bcd"}, false);
  result = same_end.Push("abcd");
  EXPECT_EQ(result.text, "a");
  EXPECT_EQ(result.matched, 1);
}

// Against a search over the whole text, for random stop strings and cuts.
TEST(StopMatcher, AgreesWithASearchOverTheWholeText) {
  std::mt19937 random(23);
  const auto word = [&](int longest) {
    std::string text;
    for (int i = 1 + static_cast<int>(random() % longest); i > 0; --i)
      text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    for (int i = random() % 4; i >= 0; --i) stops.push_back(word(6));
    const std::string text = word(40);
    // The end that comes first, and for it the longest stop string.
    std::string expected = text;
    bool matches = false;
    for (size_t end = 1; end <= text.size() && !matches; ++end) {
      size_t longest = 0;
      for (const std::string& stop : stops) {
        if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
          longest = std::max(longest, stop.size());
        }
      }
      if (longest > 0) {
        matches = true;
        expected = text.substr(0, end - longest);
      }
    }
    StopMatcher matcher(stops, false);
    std::string got;
    int32_t matched = -1;
    for (size_t begin = 0; begin < text.size() && matched < 0;) {
      const size_t size = 1 + random() % 5;
      const StopMatcher::Result result = matcher.Push(absl::string_view(text).substr(begin, size));
      got += result.text;
      matched = result.matched;
      begin += size;
    }
    if (matched < 0) got += matcher.Flush();
    ASSERT_EQ(got, expected) << text;
    ASSERT_EQ(matched >= 0, matches) << text;
  }
}

}  // namespace
}  // namespace ridge::worker
