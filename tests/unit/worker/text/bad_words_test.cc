#include "worker/text/bad_words.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/text/small_tokenizer.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class BadWordsTest : public ::testing::Test {
 protected:
  BadWords Words(const std::vector<std::string>& words) const { return {tokenizer_.get(), &index_, words}; }
  int32_t StateAfter(const BadWords& words, const std::vector<TokenId>& tokens) const {
    int32_t state = 0;
    for (TokenId token : tokens) state = words.Advance(state, token);
    return state;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = SmallTokenizer();
  const TokenIndex index_{tokenizer_.get()};
};

TEST_F(BadWordsTest, TokenIndexKnowsBeginningsAndContents) {
  EXPECT_THAT(index_.BeginningWith("he"), UnorderedElementsAre(256, 258));
  EXPECT_THAT(index_.BeginningWith("hex"), IsEmpty());
  EXPECT_THAT(index_.Holding("l"), UnorderedElementsAre('l', 257, 258, 260));  // <tool> is not special
}

TEST_F(BadWordsTest, TokensThatHoldAWordAreAlwaysBanned) {
  EXPECT_THAT(Words({"ll"}).always(), ElementsAre(257, 258));
  EXPECT_THAT(Words({"x", "ell", "x"}).always(), ElementsAre('x', 258));
}

TEST_F(BadWordsTest, CompletesAWordAcrossTokens) {
  const BadWords words = Words({"help", "elk"});
  EXPECT_THAT(words.CompletedBy(0), IsEmpty());
  // "hel" ends with the beginnings "hel" and "el".
  const int32_t state = StateAfter(words, {'x', 256, 'l'});
  EXPECT_THAT(words.CompletedBy(state), UnorderedElementsAre('p', 'k'));
  EXPECT_THAT(words.CompletedBy(StateAfter(words, {256, 'l', 'z'})), IsEmpty());
  // A special token between them has no text.
  EXPECT_THAT(words.CompletedBy(StateAfter(words, {256, 259, 'l'})), UnorderedElementsAre('p', 'k'));
}

TEST_F(BadWordsTest, TokensThatGoOnBehindTheWordCompleteItToo) {
  const BadWords words = Words({"ah"});
  EXPECT_THAT(words.CompletedBy(StateAfter(words, {'a'})), UnorderedElementsAre('h', 256, 258));
  EXPECT_THAT(words.EverCompleting(), UnorderedElementsAre('h', 256, 258));
}

// Texts of random tokens that heed the bans never hold a word, and nothing is banned without a reason.
TEST_F(BadWordsTest, BansExactlyWhatCompletesAWord) {
  std::mt19937 random(2);
  const std::vector<TokenId> alphabet = {'h', 'e', 'l', 'o', 256, 257, 258, 259};
  const std::vector<std::string> list = {"hello", "lol", "ehe", "llll", "o"};
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> chosen;
    for (const std::string& word : list) {
      if (random() % 2 == 0) chosen.push_back(word);
    }
    const BadWords words = Words(chosen);
    std::string text;
    int32_t state = 0;
    for (int i = 0; i < 40; ++i) {
      std::vector<TokenId> banned = words.CompletedBy(state);
      banned.insert(banned.end(), words.always().begin(), words.always().end());
      for (TokenId token : alphabet) {
        const std::string next = text + tokenizer_->Decode({token}, true);
        const bool completes = std::any_of(chosen.begin(), chosen.end(), [&](const std::string& word) {
          return next.find(word) != std::string::npos;
        });
        ASSERT_EQ(std::find(banned.begin(), banned.end(), token) != banned.end(), completes)
            << text << " + " << token;
      }
      const TokenId token = alphabet[random() % alphabet.size()];
      if (std::find(banned.begin(), banned.end(), token) != banned.end()) continue;
      text += tokenizer_->Decode({token}, true);
      state = words.Advance(state, token);
    }
  }
}

}  // namespace
}  // namespace ridge::worker
