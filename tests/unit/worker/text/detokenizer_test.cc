#include "worker/text/detokenizer.h"

#include <random>

#include "common/utf8.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

TEST(IncrementalDetokenizer, HoldsBackHalfACharacter) {
  IncrementalDetokenizer detokenizer;
  EXPECT_EQ(detokenizer.Push("a\xF0\x9F"), "a");
  EXPECT_EQ(detokenizer.Push("\x91"), "");
  EXPECT_EQ(detokenizer.Push("\xA9z"), "\xF0\x9F\x91\xA9z");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(IncrementalDetokenizer, ReplacesWhatCannotBecomeACharacter) {
  IncrementalDetokenizer detokenizer;
  EXPECT_EQ(detokenizer.Push("\xF0\x9F"), "");
  EXPECT_EQ(detokenizer.Push("a"),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(detokenizer.Push("\xE4\xBD"), "");
  EXPECT_EQ(detokenizer.Flush(), "\xEF\xBF\xBD");
}

TEST(IncrementalDetokenizer, JoinedDeltasAreTheOneShotText) {
  std::mt19937 random(17);
  const std::string pieces[] = {"a",    "\xC3",     "\xA9", "\xE4\xBD", "\xA0", "\xF0",
                                "\x9F", "\x91\xA9", "\xFF", "\xED\xA0", "\xC0", " "};
  for (int round = 0; round < 2000; ++round) {
    IncrementalDetokenizer detokenizer;
    std::string bytes, text;
    for (int i = 0; i < 12; ++i) {
      const std::string& piece = pieces[random() % std::size(pieces)];
      bytes += piece;
      const std::string delta = detokenizer.Push(piece);
      ASSERT_TRUE(IsValidUtf8(delta));
      text += delta;
    }
    text += detokenizer.Flush();
    ASSERT_EQ(text, ReplaceInvalidUtf8(bytes));
  }
}

}  // namespace
}  // namespace ridge::worker
