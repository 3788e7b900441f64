#include "worker/service/inference_service.h"

#include <map>
#include <thread>

#include "common/status.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/service/service_fixture.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using InferenceServiceTest = ServiceTest;

const std::vector<TokenId> kPrompt = {5, 6, 7};
constexpr char kPromptText[] = "prompt_ids { ids: [5, 6, 7] } ";

// What the model says after kPrompt; it meets no end of sequence.
std::vector<TokenId> Said(int32_t count) {
  return FakeBackend::Generate(kPrompt, count);
}

TEST_F(InferenceServiceTest, StreamsTokensThenOneSummary) {
  const Streamed streamed =
      Generate(std::string(kPromptText) + "max_tokens: 20 ignore_eos: true request_id: 'r'");
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_THAT(streamed.ids, ElementsAreArray(Said(20)));
  EXPECT_EQ(streamed.summary.choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(streamed.summary.usage().prompt_tokens(), 3);
  EXPECT_EQ(streamed.summary.usage().completion_tokens(), 20);
  EXPECT_EQ(streamed.summary.model(), "small");
  EXPECT_EQ(streamed.summary.numerics_id(), "small-numerics");
  EXPECT_EQ(streamed.summary.request_id(), "r");
  const v1::Timings& timings = streamed.summary.timings();
  EXPECT_GE(timings.queue_us(), 0);
  EXPECT_GE(timings.prefill_us(), 0);
  EXPECT_LE(timings.queue_us() + timings.prefill_us() + timings.decode_us(), timings.total_us());
  EXPECT_TRUE(BecomesIdle());
  EXPECT_EQ(Finished("length"), 1);
}

TEST_F(InferenceServiceTest, ChoicesShareAStreamAndEndEachForItself) {
  // The fifth token of choice 1 ends it.
  const std::vector<TokenId> of_1 = FakeBackend::Generate(kPrompt, 5, 1);
  v1::GenerateRequest request =
      FromText<v1::GenerateRequest>(std::string(kPromptText) + "max_tokens: 20 n: 3 ignore_eos: true");
  request.add_stop_token_ids(of_1[4]);
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, request);
  std::map<int32_t, std::vector<TokenId>> ids;
  v1::Summary summary;
  int summaries = 0;
  for (v1::GenerateResponse message; reader->Read(&message);) {
    for (const v1::ChoiceTokens& choice : message.choices()) {
      for (const v1::Token& token : choice.tokens()) {
        EXPECT_EQ(token.ordinal(), static_cast<int32_t>(ids[choice.choice()].size()));
        ids[choice.choice()].push_back(token.id());
      }
    }
    if (!message.has_summary()) continue;
    summary = message.summary();
    ++summaries;
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(summaries, 1);
  EXPECT_EQ(ids[0], FakeBackend::Generate(kPrompt, 20, 0));
  EXPECT_EQ(ids[1], of_1);
  EXPECT_EQ(ids[2], FakeBackend::Generate(kPrompt, 20, 2));
  ASSERT_EQ(summary.choices_size(), 3);
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(summary.choices(i).choice(), i);
    EXPECT_EQ(summary.choices(i).completion_tokens(), static_cast<int32_t>(ids[i].size()));
    EXPECT_EQ(summary.choices(i).finish_reason(), i == 1 ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH);
  }
  EXPECT_EQ(summary.choices(1).matched_stop_id(), of_1[4]);
  EXPECT_EQ(summary.usage().prompt_tokens(), 3);
  EXPECT_EQ(summary.usage().completion_tokens(), 45);
  EXPECT_TRUE(BecomesIdle());
  EXPECT_EQ(Finished("length"), 1);  // one outcome a request
  EXPECT_EQ(Finished("stop"), 0);
  EXPECT_EQ(registry_.Counter("ridge_prompt_tokens_total", "").Value(), 3);
  EXPECT_EQ(registry_.Counter("ridge_generation_tokens_total", "").Value(), 45);
}

TEST_F(InferenceServiceTest, AStopStringEndsOneChoiceAndLeavingEndsAll) {
  const TokenId last = FakeBackend::Generate(kPrompt, 6, 1)[5];
  v1::GenerateRequest request =
      FromText<v1::GenerateRequest>(std::string(kPromptText) + "max_tokens: 4000 n: 3 ignore_eos: true");
  request.add_stop(std::string(model_.tokenizer->TokenBytes(last)));
  backend_.Allow(30);
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, request);
  int of_1 = 0, of_0 = 0;
  for (v1::GenerateResponse message; of_0 < 20 && reader->Read(&message);) {
    for (const v1::ChoiceTokens& choice : message.choices())
      (choice.choice() == 1 ? of_1 : of_0) += choice.choice() < 2 ? choice.tokens_size() : 0;
  }
  EXPECT_LE(of_1, 6);
  EXPECT_GE(of_0, 20);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_LE(StepsUntilIdle(), 20);
  EXPECT_EQ(Finished("cancelled"), 1);
}

TEST_F(InferenceServiceTest, OneTokenIsOneMessage) {
  const Streamed streamed = Generate(std::string(kPromptText) + "max_tokens: 1");
  ASSERT_TRUE(streamed.status.ok());
  EXPECT_EQ(streamed.messages, 1);
  EXPECT_THAT(streamed.ids, ElementsAreArray(Said(1)));
}

TEST_F(InferenceServiceTest, TheFirstTokenArrivesWhileTheRestIsToCome) {
  backend_.Allow(1);
  grpc::ClientContext context;
  const auto reader = inference_->Generate(
      &context, FromText<v1::GenerateRequest>(std::string(kPromptText) + "max_tokens: 50"));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.choices(0).tokens(0).id(), Said(1)[0]);
  EXPECT_FALSE(message.has_summary());
  context.TryCancel();
  reader->Finish();
}

TEST_F(InferenceServiceTest, AStopStringEndsTheSequence) {
  const std::vector<TokenId> said = Said(10);
  // The seventh token's text, which none of the first six ends.
  const std::string stop = std::string(model_.tokenizer->TokenBytes(said[6]));
  ASSERT_GE(said[6], kFirstWord);
  v1::GenerateRequest request = FromText<v1::GenerateRequest>(std::string(kPromptText) + "max_tokens: 500");
  request.add_stop(stop);
  const Streamed streamed = Generate(request);
  ASSERT_TRUE(streamed.status.ok());
  EXPECT_THAT(streamed.ids, ElementsAreArray(Said(7)));
  EXPECT_EQ(streamed.summary.choices(0).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(streamed.summary.choices(0).matched_stop(), stop);
  EXPECT_EQ(streamed.summary.usage().completion_tokens(), 7);
  EXPECT_THAT(streamed.text, testing::Not(HasSubstr(stop)));
  EXPECT_TRUE(BecomesIdle());
  EXPECT_EQ(Finished("stop"), 1);
}

TEST_F(InferenceServiceTest, AStopTokenEndsTheSequence) {
  v1::GenerateRequest request = FromText<v1::GenerateRequest>(std::string(kPromptText) + "max_tokens: 500");
  request.add_stop_token_ids(Said(5)[4]);
  const Streamed streamed = Generate(request);
  EXPECT_THAT(streamed.ids, ElementsAreArray(Said(5)));
  EXPECT_EQ(streamed.summary.choices(0).matched_stop_id(), Said(5)[4]);
}

TEST_F(InferenceServiceTest, TheContextIsALimit) {
  v1::GenerateRequest request;
  for (int i = 0; i < model_.context_length - 2; ++i) request.mutable_prompt_ids()->add_ids(i % 200);
  request.set_ignore_eos(true);
  const Streamed streamed = Generate(request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_EQ(streamed.ids.size(), 2u);
  EXPECT_EQ(streamed.summary.choices(0).finish_reason(), v1::FINISH_REASON_CONTEXT);
}

TEST_F(InferenceServiceTest, ACancelledSequenceGivesItsMemoryBack) {
  backend_.Allow(3);
  grpc::ClientContext context;
  const auto reader = inference_->Generate(
      &context, FromText<v1::GenerateRequest>(std::string(kPromptText) + "max_tokens: 2000"));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_LT(StepsUntilIdle(), 1000);  // of the 2,000 that it asked for
  EXPECT_EQ(Finished("cancelled"), 1);
}

TEST_F(InferenceServiceTest, ADeadlineAtTheEndOfTimeIsNone) {
  for (const int64_t years : {200, 300, 10'000}) {
    grpc::ClientContext context;
    gpr_timespec deadline = gpr_now(GPR_CLOCK_REALTIME);
    deadline.tv_sec += years * 365 * 24 * 3600;
    context.set_deadline(deadline);
    const auto reader = inference_->Generate(
        &context, FromText<v1::GenerateRequest>(std::string(kPromptText) + "max_tokens: 2"));
    for (v1::GenerateResponse message; reader->Read(&message);) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << years << ": " << status.error_message();
  }
}

TEST_F(InferenceServiceTest, ADeadlineEndsTheSequence) {
  backend_.Allow(0);
  const v1::GenerateRequest request =
      FromText<v1::GenerateRequest>(std::string(kPromptText) + "max_tokens: 2000");
  const Streamed streamed = Generate(request, absl::Milliseconds(50));
  EXPECT_EQ(streamed.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_LT(StepsUntilIdle(), 1000);
  EXPECT_EQ(Finished("deadline"), 1);
  EXPECT_EQ(Finished("cancelled"), 0);
}

TEST_F(InferenceServiceTest, ManyCallsThatAreCutOffLeaveNothingBehind) {
  constexpr int kThreads = 8, kCallsEach = 40;
  const v1::GenerateRequest request =
      FromText<v1::GenerateRequest>(std::string(kPromptText) + "max_tokens: 300 ignore_eos: true");
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t, &request] {
      for (int i = 0; i < kCallsEach; ++i) {
        grpc::ClientContext context;
        const auto reader = inference_->Generate(&context, request);
        v1::GenerateResponse message;
        for (int reads = (t + i) % 5; reads > 0 && reader->Read(&message); --reads) continue;
        context.TryCancel();
        reader->Finish();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(BecomesIdle());
  EXPECT_THAT(Generate(std::string(kPromptText) + "max_tokens: 5 ignore_eos: true").ids,
              ElementsAreArray(Said(5)));
}

TEST_F(InferenceServiceTest, TextThatIsNotUtf8NamesItsField) {
  v1::GenerateRequest request;
  request.set_prompt("a\xff");
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Generate(request).status.error_message(), "prompt: not valid UTF-8");
  request.mutable_chat()->add_messages()->set_content("\xc3");
  EXPECT_EQ(Generate(request).status.error_message(), "chat.messages[0].content: not valid UTF-8");

  v1::TokenizeRequest tokenize;
  tokenize.set_prompt("\xff");
  v1::TokenizeResponse tokens;
  grpc::ClientContext context;
  EXPECT_EQ(inference_->Tokenize(&context, tokenize, &tokens).error_message(), "prompt: not valid UTF-8");
}

// A reserved number, as of a client of a later version.
TEST_F(InferenceServiceTest, AFieldThatIsNotKnownIsRefusedNotIgnored) {
  v1::GenerateRequest request = FromText<v1::GenerateRequest>("prompt: 'a'");
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(32, "root ::= [0-9]");
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Generate(request).status.error_message(), "field 32: unknown to this version");

  v1::TokenizeRequest tokenize;
  tokenize.GetReflection()->MutableUnknownFields(&tokenize)->AddVarint(99, 1);
  v1::TokenizeResponse tokens;
  grpc::ClientContext context;
  EXPECT_EQ(inference_->Tokenize(&context, tokenize, &tokens).error_message(),
            "field 99: unknown to this version");
}

TEST_F(InferenceServiceTest, ACutStreamSaysWhy) {
  backend_.Allow(1);
  grpc::ClientContext context;
  const auto reader = inference_->Generate(
      &context, FromText<v1::GenerateRequest>(std::string(kPromptText) + "max_tokens: 2000"));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  std::thread steps([this] {
    absl::SleepFor(absl::Milliseconds(50));
    backend_.Allow(INT64_MAX);
  });
  EXPECT_EQ(open_calls_.Drain(absl::Milliseconds(10), "the worker stops"), 1);
  steps.join();
  while (reader->Read(&message)) continue;
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "the worker stops: the stream was still open after 10ms");
  EXPECT_TRUE(BecomesIdle());
}

TEST_F(InferenceServiceTest, BadRequestsAreRefusedBeforeAdmission) {
  EXPECT_EQ(Generate("prompt: 'a' model: 'large'").status.error_code(), grpc::StatusCode::NOT_FOUND);
  const Streamed streamed = Generate("prompt_ids { ids: 1000 }");
  EXPECT_EQ(streamed.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(streamed.status.error_message(), StartsWith("prompt_ids.ids[0]: "));
  EXPECT_EQ(streamed.messages, 0);
  EXPECT_EQ(Finished("error"), 0);  // never a request of the engine
}

TEST_F(InferenceServiceTest, ADrainingServerIsUnavailable) {
  engine_->Drain();
  EXPECT_EQ(Generate("prompt: 'a'").status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(InferenceServiceTest, TokenizeSeesWhatGenerateSees) {
  grpc::ClientContext context;
  v1::TokenizeResponse response;
  ASSERT_TRUE(
      inference_
          ->Tokenize(&context, FromText<v1::TokenizeRequest>("prompt: 'a<|im_end|>\303\244'"), &response)
          .ok());
  EXPECT_THAT(response.ids(), ElementsAre(0x61, kImEnd, 0xc3, 0xa4));
  EXPECT_THAT(response.pieces(), ElementsAre("a", "<|im_end|>", "\xc3", "\xa4"));
}

TEST_F(InferenceServiceTest, TokenizeNeedsAnInput) {
  grpc::ClientContext context;
  v1::TokenizeResponse response;
  EXPECT_EQ(inference_->Tokenize(&context, v1::TokenizeRequest(), &response).error_message(),
            "input: one of prompt, chat is required");
}

TEST_F(InferenceServiceTest, DetokenizeGivesBytesAndText) {
  v1::DetokenizeRequest request = FromText<v1::DetokenizeRequest>("ids: [300, 257, 195]");
  v1::DetokenizeResponse response;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(inference_->Detokenize(&context, request, &response).ok());
    EXPECT_EQ(response.bytes(), " w300<|im_end|>\xc3");
    EXPECT_EQ(response.text(), " w300<|im_end|>\ufffd");
  }
  request.set_skip_special_tokens(true);
  request.add_ids(1000);
  grpc::ClientContext context;
  EXPECT_EQ(inference_->Detokenize(&context, request, &response).error_message(),
            "ids[3]: 1000 is outside the vocabulary of 1000");
}

TEST_F(InferenceServiceTest, GetModelTellsWhatIsServed) {
  grpc::ClientContext context;
  v1::GetModelResponse response;
  ASSERT_TRUE(inference_->GetModel(&context, v1::GetModelRequest(), &response).ok());
  EXPECT_EQ(response.name(), "small");
  EXPECT_EQ(response.vocab_size(), 1000);
  EXPECT_EQ(response.context_length(), 4096);
  EXPECT_THAT(response.eos_token_ids(), ElementsAre(kImEnd));
  EXPECT_EQ(response.chat_template(), "chatml");
  EXPECT_TRUE(response.has_tokenizer());
  EXPECT_EQ(response.default_sampling().temperature(), 1.0f);
  EXPECT_FALSE(response.default_sampling().has_seed());
  EXPECT_EQ(response.numerics_id(), "small-numerics");
  EXPECT_EQ(response.kv_capacity_tokens(), 65536);
  EXPECT_EQ(response.version(), RIDGE_VERSION);
}

TEST_F(InferenceServiceTest, GetModelOfAnotherModelIsNotFound) {
  grpc::ClientContext context;
  v1::GetModelResponse response;
  EXPECT_EQ(
      inference_->GetModel(&context, FromText<v1::GetModelRequest>("model: 'large'"), &response).error_code(),
      grpc::StatusCode::NOT_FOUND);
}

class FullQueueTest : public ServiceTest {
 protected:
  FullQueueTest()
      : ServiceTest(
            {.num_blocks = kNumBlocks, .max_running = 1, .step_tokens = 64, .max_queued_requests = 1}) {}
};

TEST_F(FullQueueTest, SaysWhenToTryAgainInTrailerAndDetails) {
  backend_.Allow(0);
  const auto request =
      FromText<v1::GenerateRequest>("prompt_ids { ids: 1 ids: 2 } max_tokens: 3 sampling { temperature: 0 }");
  grpc::ClientContext running, waiting, refused;
  const auto first = inference_->Generate(&running, request);
  while (engine_->Load().running == 0) absl::SleepFor(absl::Milliseconds(1));
  const auto second = inference_->Generate(&waiting, request);
  while (engine_->Load().queued == 0) absl::SleepFor(absl::Milliseconds(1));
  const auto third = inference_->Generate(&refused, request);
  v1::GenerateResponse message;
  EXPECT_FALSE(third->Read(&message));
  const grpc::Status status = third->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(),
            "the queue is full: 1 requests with 2 tokens wait; --max_queued_requests is 1");
  EXPECT_EQ(RetryAfter(status), absl::Seconds(2));
  const auto& trailers = refused.GetServerTrailingMetadata();
  ASSERT_EQ(trailers.count("grpc-retry-pushback-ms"), 1u);
  const grpc::string_ref trailer = trailers.find("grpc-retry-pushback-ms")->second;
  EXPECT_EQ(std::string(trailer.data(), trailer.size()), "2000");
  EXPECT_EQ(Finished("overload"), 1);
  running.TryCancel();
  waiting.TryCancel();
  backend_.Allow(INT64_MAX);
  EXPECT_TRUE(BecomesIdle());
}

}  // namespace
}  // namespace ridge::worker
