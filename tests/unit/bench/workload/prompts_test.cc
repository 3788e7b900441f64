#include "bench/workload/prompts.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "bench/workload/draw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/text/real_tokenizers.h"

namespace ridge::bench {
namespace {

std::string SourceText() {
  std::ifstream file(RIDGE_SOURCE_DIR "/bench/traces/prompt_source.txt", std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(CutPrompt, HasExactlyTheTokensWhenTokenisedAgain) {
  const std::string source = SourceText();
  for (const worker::Tokenizer* tokenizer : {&worker::Qwen25(), &worker::SmolLm2()}) {
    for (const int32_t tokens : {1, 16, 64, 256, 1024, 4096}) {
      const absl::StatusOr<Prompt> prompt = CutPrompt(EncodeWith(tokenizer), source, tokens);
      ASSERT_TRUE(prompt.ok()) << prompt.status();
      EXPECT_EQ(prompt->ids.size(), tokens);
      EXPECT_EQ(*tokenizer->Encode(prompt->text, {}), prompt->ids);
      EXPECT_TRUE(absl::StartsWith(source, prompt->text));
    }
  }
}

TEST(CutPrompt, SaysHowLongTheSourceIs) {
  EXPECT_EQ(CutPrompt(EncodeWith(&worker::Qwen25()), "one two", 3).status().message(),
            "--source: the text has 2 tokens, a prompt of 3 is asked for; give a longer one");
}

TEST(Prompts, WithoutATokenizerShortOnesBeginLongOnes) {
  Prompts prompts(nullptr, "", 1000);
  const Prompt p16 = *prompts.For(UniformDraw(16, 1, 1).items[0]);
  const Prompt p64 = *prompts.For(UniformDraw(64, 1, 1).items[0]);
  ASSERT_EQ(p16.ids.size(), 16);
  ASSERT_EQ(p64.ids.size(), 64);
  EXPECT_TRUE(std::equal(p16.ids.begin(), p16.ids.end(), p64.ids.begin()));
  for (worker::TokenId id : p64.ids) EXPECT_TRUE(id >= 0 && id < 1000);
}

TEST(Prompts, EqualBlocksGiveEqualIds) {
  Prompts prompts(nullptr, "", 50'000);
  const WorkItem a{"trace", 1100, 1, 0, {3, 4, 5}};
  const WorkItem b{"trace", 1400, 1, 0, {3, 4, 6}};
  const std::vector<worker::TokenId> first = prompts.For(a)->ids, second = prompts.For(b)->ids;
  ASSERT_EQ(first.size(), 1100);
  ASSERT_EQ(second.size(), 1400);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 1024, second.begin()));
  EXPECT_FALSE(std::equal(first.begin() + 1024, first.end(), second.begin() + 1024));
}

}  // namespace
}  // namespace ridge::bench
