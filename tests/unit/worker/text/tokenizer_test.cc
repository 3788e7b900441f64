#include "worker/text/tokenizer.h"

#include <chrono>
#include <ctime>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/text/small_tokenizer.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Tokenizer, MergesByRankWithinWords) {
  const auto tokenizer = SmallTokenizer();
  EXPECT_THAT(*tokenizer->Encode("hello", {}), ElementsAre(258, 'o'));
  EXPECT_THAT(*tokenizer->Encode("he ll", {}), ElementsAre(256, ' ', 257));
  EXPECT_THAT(*tokenizer->Encode("lll", {}), ElementsAre(257, 'l'));
  EXPECT_THAT(*tokenizer->Encode("", {}), ElementsAre());
}

TEST(Tokenizer, TakesTheLongestSpecialTokenWhereAsked) {
  const auto tokenizer = SmallTokenizer();
  EXPECT_THAT(*tokenizer->Encode("a<end>moreb", {.parse_special = true}), ElementsAre('a', 261, 'b'));
  EXPECT_THAT(*tokenizer->Encode("<end><end>", {.parse_special = true}), ElementsAre(259, 259));
  EXPECT_THAT(*tokenizer->Encode("<end>", {}), ElementsAre('<', 'e', 'n', 'd', '>'));
}

TEST(Tokenizer, RecognisesAddedTokensInEveryText) {
  EXPECT_THAT(*SmallTokenizer()->Encode("x<tool>", {}), ElementsAre('x', 260));
}

TEST(Tokenizer, AddsBosWhereAsked) {
  EXPECT_THAT(*SmallTokenizer()->Encode("x", {.add_special_tokens = true}), ElementsAre(259, 'x'));
}

TEST(Tokenizer, RefusesWhatIsNotUtf8) {
  EXPECT_EQ(SmallTokenizer()->Encode("a\xFF", {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Tokenizer, DecodesToBytes) {
  const auto tokenizer = SmallTokenizer();
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{258, 'o', 259}, false), "hello<end>");
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{258, 'o', 259}, true), "hello");
}

TEST(Tokenizer, RefusesABosOutsideTheVocabulary) {
  TokenizerSpec spec = SmallTokenizerSpec();
  spec.bos_id = 262;
  const absl::Status status = Tokenizer::Create(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("262"));
}

TEST(Tokenizer, StaysFastWithManySpecialTokensThatBeginAlike) {
  TokenizerSpec spec = SmallTokenizerSpec();
  for (int i = 0; i < 1000; ++i) {
    spec.tokens.push_back({"<|reserved_" + std::to_string(i) + "|>", TokenKind::kSpecial});
  }
  const auto tokenizer = *Tokenizer::Create(spec);
  std::string text;
  while (text.size() < 1000000) text += "<|reserved_<";
  const std::clock_t begin = std::clock();
  EXPECT_EQ(tokenizer->Encode(text + "<|reserved_999|>", {.parse_special = true})->back(), 262 + 999);
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 3.0);
}

TEST(Tokenizer, StaysFastOnOneEndlessWord) {
  const auto tokenizer = SmallTokenizer();
  for (const char* unit : {"l", "he", "hell", "<", " "}) {
    std::string text;
    while (text.size() < 1000000) text += unit;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode(text, {.parse_special = true}), false), text);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << unit;
  }
}

}  // namespace
}  // namespace ridge::worker
