#include "worker/text/text_stream.h"

#include "gtest/gtest.h"
#include "tests/unit/worker/text/small_tokenizer.h"

namespace ridge::worker {
namespace {

TEST(TextStream, DeliversWhatIsHeldBackWithTheLastToken) {
  const auto tokenizer = SmallTokenizer();
  TextStream stream(tokenizer.get(), {.stops = {"lot"}});
  EXPECT_EQ(stream.Push('a', false, false).text, "a");
  EXPECT_EQ(stream.Push('l', false, false).text, "");
  EXPECT_EQ(stream.Push(0xC3, true, false).text, "l\xEF\xBF\xBD");
}

TEST(TextStream, FindsAStopAcrossTokens) {
  const auto tokenizer = SmallTokenizer();
  TextStream stream(tokenizer.get(), {.stops = {"ello"}});
  EXPECT_EQ(stream.Push('h', false, false).text, "h");
  EXPECT_EQ(stream.Push('e', false, false).text, "");
  EXPECT_EQ(stream.Push(257, false, false).text, "");
  const TextStream::Delta delta = stream.Push('o', false, false);
  EXPECT_EQ(delta.text, "");
  EXPECT_EQ(delta.matched_stop, 0);
}

TEST(TextStream, FindsNoStopInTheTextOfTheFirstMinTokens) {
  const auto tokenizer = SmallTokenizer();
  TextStream stream(tokenizer.get(), {.stops = {"lo"}, .min_tokens = 3});
  EXPECT_EQ(stream.Push('l', false, false).text, "l");
  EXPECT_EQ(stream.Push('o', false, false).text, "o");
  EXPECT_EQ(stream.Push('l', false, false).text, "l");
  EXPECT_EQ(stream.Push('o', false, false).text, "o");  // the match would begin among the first
  EXPECT_EQ(stream.Push('l', false, false).text, "");
  EXPECT_EQ(stream.Push('o', false, false).matched_stop, 0);
}

TEST(TextStream, LeavesSpecialAndStopTokensOutUnlessAsked) {
  const auto tokenizer = SmallTokenizer();
  TextStream plain(tokenizer.get(), {});
  EXPECT_EQ(plain.Push(259, false, false).text, "");
  EXPECT_EQ(plain.Push('x', true, true).text, "");
  TextStream all(tokenizer.get(), {.stops = {}, .include_stop = true, .skip_special = false});
  EXPECT_EQ(all.Push(259, false, false).text, "<end>");
  EXPECT_EQ(all.Push('x', true, true).text, "x");
}

}  // namespace
}  // namespace ridge::worker
