#include "worker/service/response_stream.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/service/small_model.h"

namespace ridge::worker {
namespace {

constexpr int64_t kArrivalNs = 1'000'000'000;

const ServedModel& Model() {
  static const ServedModel* const model = new ServedModel(SmallModel());
  return *model;
}

// A stream for the request `text` (its prompt aside), fed by hand: a token a millisecond.
class Stream {
 public:
  explicit Stream(const std::string& text, const ServedModel& model = Model())
      : stream_(*Resolve(FromText<v1::GenerateRequest>(text + " prompt_ids { ids: [1, 2, 3] } "
                                                              "sampling { seed: 42 } request_id: 'mine'"),
                         model),
                &model, kArrivalNs) {}

  bool Add(TokenId id, bool is_last = false) {
    ++tokens_;
    return stream_.AddToken({id, -0.5f, kArrivalNs + tokens_ * 1'000'000, is_last});
  }
  void AddWithTop(TokenId id, std::vector<TokenLogprob> top) {
    stream_.AddToken({id, -0.5f, kArrivalNs, /*is_last=*/false, std::move(top)});
  }
  void AddPromptLogprobs(std::vector<PromptLogprob> logprobs) {
    stream_.AddPromptLogprobs(std::move(logprobs));
  }
  void AddBytes(absl::string_view bytes) {
    for (char byte : bytes) EXPECT_TRUE(Add(static_cast<uint8_t>(byte)));
  }
  void End(FinishReason reason) {
    stream_.EndChoice(0, reason);
    stream_.End({.status = absl::OkStatus(), .reason = reason, .admitted_ns = kArrivalNs + 250'000});
  }

  // Everything that was not taken yet, in one message.
  v1::GenerateResponse Take() { return stream_.TakeMessage(); }
  bool HasMessage() const { return stream_.HasMessage(); }

 private:
  ResponseStream stream_;
  int tokens_ = 0;
};

std::string TextOf(const v1::GenerateResponse& message) {
  std::string text;
  for (const v1::ChoiceTokens& choice : message.choices()) {
    for (const v1::Token& token : choice.tokens()) text += token.text();
  }
  return text;
}

TEST(ResponseStreamTest, ATokenCarriesIdTextBytesOrdinalAndTime) {
  Stream stream("logprobs: 0");
  EXPECT_FALSE(stream.HasMessage());
  stream.Add(300);
  const v1::GenerateResponse first = stream.Take();
  EXPECT_FALSE(stream.HasMessage());
  EXPECT_EQ(first.sequence_number(), 0u);
  EXPECT_FALSE(first.has_summary());
  ASSERT_EQ(first.choices_size(), 1);
  EXPECT_EQ(first.choices(0).choice(), 0);
  ASSERT_EQ(first.choices(0).tokens_size(), 1);
  const v1::Token& token = first.choices(0).tokens(0);
  EXPECT_EQ(token.id(), 300);
  EXPECT_EQ(token.text(), " w300");
  EXPECT_EQ(token.bytes(), " w300");
  EXPECT_EQ(token.logprob(), -0.5f);
  EXPECT_EQ(token.ordinal(), 0);
  EXPECT_EQ(token.time_offset_us(), 1000);
  stream.Add(301);
  const v1::GenerateResponse second = stream.Take();
  EXPECT_EQ(second.sequence_number(), 1u);
  EXPECT_EQ(second.choices(0).tokens(0).ordinal(), 1);
}

TEST(ResponseStreamTest, TokensThatWaitShareAMessage) {
  Stream stream("");
  for (TokenId id : {300, 301, 302}) stream.Add(id);
  const v1::GenerateResponse message = stream.Take();
  ASSERT_EQ(message.choices_size(), 1);
  EXPECT_EQ(message.choices(0).tokens_size(), 3);
  EXPECT_EQ(TextOf(message), " w300 w301 w302");
  EXPECT_FALSE(message.choices(0).tokens(0).has_logprob());
}

TEST(ResponseStreamTest, AMessageIsBoundedAndTheSummaryComesLast) {
  Stream stream("");
  for (int i = 0; i < 150; ++i) stream.Add(300 + i);
  stream.End(FinishReason::kLength);
  std::vector<int> sizes;
  int summaries = 0;
  while (stream.HasMessage()) {
    const v1::GenerateResponse message = stream.Take();
    EXPECT_EQ(message.sequence_number(), sizes.size());
    sizes.push_back(message.choices(0).tokens_size());
    summaries += message.has_summary();
    EXPECT_EQ(message.has_summary(), !stream.HasMessage());
  }
  EXPECT_THAT(sizes, testing::ElementsAre(64, 64, 22));
  EXPECT_EQ(summaries, 1);
}

TEST(ResponseStreamTest, TheMostLikelyTokensComeWithTheirBytes) {
  Stream stream("logprobs: 2");
  stream.AddWithTop(300, {{301, -0.25f}, {300, -0.5f}});
  const v1::GenerateResponse message = stream.Take();
  const v1::Token& token = message.choices(0).tokens(0);
  EXPECT_EQ(token.logprob(), -0.5f);
  ASSERT_EQ(token.top_logprobs_size(), 2);
  EXPECT_EQ(token.top_logprobs(0).id(), 301);
  EXPECT_EQ(token.top_logprobs(0).bytes(), " w301");
  EXPECT_EQ(token.top_logprobs(0).logprob(), -0.25f);
  EXPECT_EQ(token.top_logprobs(1).id(), 300);
}

TEST(ResponseStreamTest, EchoReturnsThePromptInFrontWithItsLogprobs) {
  Stream stream("echo: true prompt_logprobs: 1");
  stream.AddPromptLogprobs({{-1.0f, {{9, -0.125f}}}});
  stream.AddPromptLogprobs({{-2.0f, {{8, -0.25f}}}});
  EXPECT_FALSE(stream.HasMessage());
  stream.Add(300);
  stream.Add(301, /*is_last=*/true);
  stream.End(FinishReason::kLength);
  const v1::GenerateResponse message = stream.Take();
  ASSERT_EQ(message.choices_size(), 1);
  ASSERT_EQ(message.choices(0).tokens_size(), 5);
  const auto token = [&](int i) { return message.choices(0).tokens(i); };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(token(i).id(), i + 1);
    EXPECT_EQ(token(i).ordinal(), i - 3);
    EXPECT_EQ(token(i).bytes(), std::string(1, static_cast<char>(i + 1)));
  }
  EXPECT_FALSE(token(0).has_logprob());
  EXPECT_EQ(token(1).logprob(), -1.0f);
  EXPECT_EQ(token(2).logprob(), -2.0f);
  EXPECT_EQ(token(2).top_logprobs(0).id(), 8);
  EXPECT_EQ(token(3).ordinal(), 0);
  EXPECT_EQ(TextOf(message), "\x01\x02\x03 w300 w301");
  EXPECT_EQ(message.summary().usage().prompt_tokens(), 3);
  EXPECT_EQ(message.summary().usage().completion_tokens(), 2);
}

TEST(ResponseStreamTest, AMessageIsBoundedInBytes) {
  Stream stream("logprobs: 20");
  std::vector<TokenLogprob> top;
  for (TokenId id = 300; id < 320; ++id) top.push_back({id, -1.0f});
  for (int i = 0; i < 200; ++i) stream.AddWithTop(300, top);
  while (stream.HasMessage()) EXPECT_LT(stream.Take().ByteSizeLong(), 20u << 10);
}

TEST(ResponseStreamTest, NoStopIsFoundInTheFirstMinTokens) {
  Stream stream("stop: 'ab' min_tokens: 2");
  EXPECT_TRUE(stream.Add('a'));
  EXPECT_TRUE(stream.Add('b'));
  EXPECT_TRUE(stream.Add('a'));
  EXPECT_FALSE(stream.Add('b'));
  stream.End(FinishReason::kStop);
  EXPECT_EQ(TextOf(stream.Take()), "ab");
}

TEST(ResponseStreamTest, TheLastMessageCarriesTheSummary) {
  Stream stream("");
  stream.Add(300);
  stream.Add(301, /*is_last=*/true);
  stream.End(FinishReason::kLength);
  const v1::GenerateResponse message = stream.Take();
  EXPECT_EQ(message.choices(0).tokens_size(), 2);
  const v1::Summary& summary = message.summary();
  ASSERT_EQ(summary.choices_size(), 1);
  EXPECT_EQ(summary.choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(summary.choices(0).matched_case(), v1::ChoiceSummary::MATCHED_NOT_SET);
  EXPECT_EQ(summary.choices(0).completion_tokens(), 2);
  EXPECT_EQ(summary.usage().prompt_tokens(), 3);
  EXPECT_EQ(summary.usage().completion_tokens(), 2);
  EXPECT_EQ(summary.timings().queue_us(), 250);
  EXPECT_EQ(summary.timings().prefill_us(), 750);
  EXPECT_EQ(summary.timings().decode_us(), 1000);
  EXPECT_EQ(summary.timings().total_us(), 2000);
  EXPECT_EQ(summary.seed(), 42u);
  EXPECT_EQ(summary.model(), "small");
  EXPECT_EQ(summary.numerics_id(), "small-numerics");
  EXPECT_EQ(summary.request_id(), "mine");
}

TEST(ResponseStreamTest, HalfCharactersWaitForTheirEnd) {
  Stream stream("");
  stream.AddBytes("\xe2\x82");
  v1::GenerateResponse message = stream.Take();
  EXPECT_EQ(message.choices(0).tokens_size(), 2);
  EXPECT_EQ(message.choices(0).tokens(0).bytes(), "\xe2");
  EXPECT_EQ(TextOf(message), "");
  stream.AddBytes("\xac");
  EXPECT_EQ(TextOf(stream.Take()), "\u20ac");
}

TEST(ResponseStreamTest, AHalfCharacterAtTheEndIsReplaced) {
  Stream stream("");
  stream.Add(0xe2);
  stream.Add(0x82, /*is_last=*/true);
  stream.End(FinishReason::kLength);
  EXPECT_EQ(TextOf(stream.Take()), "\ufffd");
}

TEST(ResponseStreamTest, AStopStringAcrossTokensCutsTheText) {
  Stream stream("stop: '0 w30' stop: 'zzz'");
  EXPECT_TRUE(stream.Add(310));
  EXPECT_EQ(TextOf(stream.Take()), " w31");  // "0" may begin a stop string
  EXPECT_FALSE(stream.Add(305));
  stream.End(FinishReason::kStop);
  const v1::GenerateResponse message = stream.Take();
  EXPECT_EQ(TextOf(message), "");
  EXPECT_EQ(message.choices(0).tokens(0).id(), 305);  // the ids run through the completing token
  EXPECT_EQ(message.summary().choices(0).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(message.summary().choices(0).matched_stop(), "0 w30");
}

TEST(ResponseStreamTest, AStopStringCanStayInTheText) {
  Stream stream("stop: '0 w30' include_stop_in_output: true");
  EXPECT_TRUE(stream.Add(310));
  EXPECT_FALSE(stream.Add(305));
  stream.End(FinishReason::kStop);
  EXPECT_EQ(TextOf(stream.Take()), " w310 w30");
}

TEST(ResponseStreamTest, ThePossibleBeginningOfAStopStringIsDeliveredAtTheEnd) {
  Stream stream("stop: '0 w30'");
  EXPECT_TRUE(stream.Add(310, /*is_last=*/true));
  stream.End(FinishReason::kLength);
  EXPECT_EQ(TextOf(stream.Take()), " w310");
}

TEST(ResponseStreamTest, AStopTokenIsInTheIdsAndNotInTheText) {
  for (const bool include : {false, true}) {
    Stream stream(include ? "stop_token_ids: 400 include_stop_in_output: true" : "stop_token_ids: 400");
    stream.Add(300);
    EXPECT_TRUE(stream.Add(400, /*is_last=*/true));
    stream.End(FinishReason::kStop);
    const v1::GenerateResponse message = stream.Take();
    EXPECT_EQ(TextOf(message), include ? " w300 w400" : " w300");
    EXPECT_EQ(message.choices(0).tokens(1).id(), 400);
    EXPECT_EQ(message.choices(0).tokens(1).bytes(), " w400");
    EXPECT_EQ(message.summary().choices(0).matched_stop_id(), 400);
    EXPECT_EQ(message.summary().choices(0).finish_reason(), v1::FINISH_REASON_STOP);
  }
}

TEST(ResponseStreamTest, SpecialTokensShowWhereAskedFor) {
  Stream hidden("ignore_eos: true");
  hidden.Add(kImEnd);
  EXPECT_EQ(TextOf(hidden.Take()), "");
  Stream shown("ignore_eos: true skip_special_tokens: false");
  shown.Add(kImEnd);
  EXPECT_EQ(TextOf(shown.Take()), "<|im_end|>");
}

TEST(ResponseStreamTest, ReturnsOnlyWhatIsWanted) {
  Stream no_text("return_text: false stop: 'w301'");
  EXPECT_TRUE(no_text.Add(300));
  const v1::GenerateResponse ids = no_text.Take();
  EXPECT_EQ(ids.choices(0).tokens(0).id(), 300);
  EXPECT_EQ(ids.choices(0).tokens(0).text(), "");
  EXPECT_FALSE(no_text.Add(301));  // stop strings work all the same

  Stream no_ids("return_ids: false");
  no_ids.Add(300);
  const v1::GenerateResponse text = no_ids.Take();
  EXPECT_EQ(text.choices(0).tokens(0).id(), 0);
  EXPECT_EQ(text.choices(0).tokens(0).bytes(), "");
  EXPECT_EQ(text.choices(0).tokens(0).text(), " w300");
}

TEST(ResponseStreamTest, WithoutATokenizerTokensHaveIdsAlone) {
  const ServedModel model = SmallModelWithoutTokenizer();
  Stream stream("", model);
  stream.Add(300, /*is_last=*/true);
  stream.End(FinishReason::kContext);
  const v1::GenerateResponse message = stream.Take();
  EXPECT_EQ(message.choices(0).tokens(0).id(), 300);
  EXPECT_EQ(message.choices(0).tokens(0).text(), "");
  EXPECT_EQ(message.choices(0).tokens(0).bytes(), "");
  EXPECT_EQ(message.summary().choices(0).finish_reason(), v1::FINISH_REASON_CONTEXT);
}

}  // namespace
}  // namespace ridge::worker
