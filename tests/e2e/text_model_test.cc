// Text through the router, on SmolLM2-135M-Instruct (RIDGE_TEST_MODEL names its GGUF file).

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/client.h"
#include "tests/e2e/servers.h"

namespace ridge::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

v1::GenerateRequest ChatRequest(const std::string& question, int32_t max_tokens) {
  v1::GenerateRequest request;
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content(question);
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(max_tokens);
  return request;
}

class TextModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string model = TestModelPath();
    if (model.empty()) {
      if (ToolsAreRequired()) FAIL() << "RIDGE_TEST_MODEL names no file";
      GTEST_SKIP() << "RIDGE_TEST_MODEL names no file";
    }
    absl::StatusOr<Server> worker = StartWorker({"--model", model, "--kv-cache-bytes", "128MiB"});
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    absl::StatusOr<Server> router = StartRouter({worker_.grpc});
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
    client_ = std::make_unique<Client>(router_.grpc);
  }

  Answer Ask(const v1::GenerateRequest& request) {
    Answer answer = client_->Ask(request);
    EXPECT_TRUE(answer.status.ok()) << Describe(answer.status);
    return answer;
  }

  Server worker_;
  Server router_;
  std::unique_ptr<Client> client_;
};

TEST_F(TextModelTest, AChatIsAnsweredAndEnds) {
  const Answer answer = Ask(ChatRequest("What is the capital of France?", 60));
  EXPECT_THAT(answer.text, HasSubstr("Paris"));
  EXPECT_THAT(answer.text, Not(HasSubstr("<|im_end|>")));
  ASSERT_TRUE(answer.summary.has_value());
  EXPECT_EQ(answer.summary->choices(0).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_GT(answer.messages, 1) << "it streams";
}

TEST_F(TextModelTest, TheWorkerAloneGivesTheSameText) {
  const v1::GenerateRequest request = ChatRequest("Name three rivers of Europe.", 40);
  const Answer relayed = Ask(request);
  const Answer direct = Client(worker_.grpc).Ask(request);
  EXPECT_TRUE(direct.status.ok()) << Describe(direct.status);
  EXPECT_EQ(relayed.text, direct.text);
  EXPECT_EQ(relayed.ids, direct.ids);
}

TEST_F(TextModelTest, AStopStringCutsTheText) {
  v1::GenerateRequest request = ChatRequest("What is the capital of France?", 60);
  const std::string whole = Ask(request).text;
  const size_t at = whole.find("Paris");
  ASSERT_NE(at, std::string::npos) << whole;
  request.add_stop("Paris");
  const Answer answer = Ask(request);
  EXPECT_EQ(answer.text, whole.substr(0, at));
  ASSERT_TRUE(answer.summary.has_value());
  EXPECT_EQ(answer.summary->choices(0).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(answer.summary->choices(0).matched_stop(), "Paris");
  request.set_include_stop_in_output(true);
  EXPECT_EQ(Ask(request).text, whole.substr(0, at) + "Paris");
}

TEST_F(TextModelTest, ASeedGivesItsTextAndAnotherSeedAnother) {
  v1::GenerateRequest request = ChatRequest("Tell me a story.", 40);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(7);
  const Answer first = Ask(request);
  const Answer again = Ask(request);
  EXPECT_EQ(again.text, first.text);
  EXPECT_EQ(again.ids, first.ids);
  EXPECT_FALSE(first.text.empty());
  request.mutable_sampling()->set_seed(8);
  EXPECT_NE(Ask(request).text, first.text);
}

TEST_F(TextModelTest, TokensAndTextAgreeWithTheTokenizer) {
  v1::TokenizeRequest tokenize;
  tokenize.set_prompt("The capital of France is");
  v1::TokenizeResponse ids;
  grpc::ClientContext first_context;
  ASSERT_TRUE(client_->stub()->Tokenize(&first_context, tokenize, &ids).ok());
  ASSERT_GT(ids.ids_size(), 3);

  v1::GenerateRequest by_text;
  by_text.set_prompt(tokenize.prompt());
  by_text.mutable_sampling()->set_temperature(0);
  by_text.set_max_tokens(12);
  v1::GenerateRequest by_ids = by_text;
  *by_ids.mutable_prompt_ids()->mutable_ids() = ids.ids();
  const Answer answer = Ask(by_text);
  EXPECT_EQ(Ask(by_ids).text, answer.text);

  v1::DetokenizeRequest detokenize;
  detokenize.mutable_ids()->Add(answer.ids.begin(), answer.ids.end());
  detokenize.set_skip_special_tokens(true);
  v1::DetokenizeResponse text;
  grpc::ClientContext second_context;
  ASSERT_TRUE(client_->stub()->Detokenize(&second_context, detokenize, &text).ok());
  EXPECT_EQ(text.text(), answer.text);
}

TEST_F(TextModelTest, BadTextIsRefusedByItsField) {
  v1::GenerateRequest empty;
  empty.set_prompt("");
  v1::GenerateRequest no_messages;
  no_messages.mutable_chat();
  v1::GenerateRequest wizard = ChatRequest("Hello", 1);
  wizard.mutable_chat()->mutable_messages(0)->set_role("wizard");
  std::string novel;
  for (int i = 0; i < 20000; ++i) novel += "word ";
  v1::GenerateRequest too_long;
  too_long.set_prompt(novel);
  v1::GenerateRequest empty_stop = ChatRequest("Hello", 1);
  empty_stop.add_stop("");
  const std::pair<std::string, v1::GenerateRequest> kBad[] = {
      {"prompt: ", empty},    {"chat.messages", no_messages}, {"chat.messages[0].role: ", wizard},
      {"prompt: ", too_long}, {"stop[0]: ", empty_stop},
  };
  for (const auto& [field, request] : kBad) {
    const grpc::Status status = client_->Ask(request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << Describe(status);
    EXPECT_THAT(status.error_message(), StartsWith(field));
  }
}

std::string Repeated(int times, const std::string& text) {
  std::string repeated;
  for (int i = 0; i < times; ++i) repeated += text;
  return repeated;
}

// The error shows the value, cut: whole it would be more than a status can carry, and gRPC would close the
// connection between router and worker with every stream on it.
TEST_F(TextModelTest, ALongBadValueEndsNoOtherStream) {
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 4; ++i) {
    v1::GenerateRequest request = ChatRequest("Count to a thousand.", 60);
    request.set_ignore_eos(true);
    streams.push_back(client_->Open(request));
    ASSERT_TRUE(streams.back()->Read()) << Describe(streams.back()->Finish().status);
  }
  const std::string long_values[] = {std::string(9000, 'r'), Repeated(2000, "漢"), std::string(500000, '%')};
  for (const std::string& value : long_values) {
    for (const std::string& server : {router_.grpc, worker_.grpc}) {
      SCOPED_TRACE(absl::StrCat(value.substr(0, 3), " to ", server));
      Client client(server);
      v1::GenerateRequest request = ChatRequest("Hello", 1);
      request.mutable_chat()->mutable_messages(0)->set_role(value);
      const grpc::Status status = client.Ask(request).status;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << Describe(status);
      EXPECT_THAT(status.error_message(),
                  StartsWith(absl::StrCat("chat.messages[0].role: \"", value.substr(0, 30))));
      EXPECT_THAT(status.error_message(), EndsWith("...\" is none of system, user, assistant, tool"));

      v1::TokenizeRequest tokenize;
      *tokenize.mutable_chat() = request.chat();
      v1::TokenizeResponse tokens;
      grpc::ClientContext tokenize_context;
      EXPECT_EQ(client.stub()->Tokenize(&tokenize_context, tokenize, &tokens).error_message(),
                status.error_message());

      v1::GetModelRequest get_model;
      get_model.set_model(value);
      v1::GetModelResponse model;
      grpc::ClientContext model_context;
      EXPECT_EQ(client.stub()->GetModel(&model_context, get_model, &model).error_code(),
                grpc::StatusCode::NOT_FOUND);
    }
  }
  for (const std::unique_ptr<Stream>& stream : streams) {
    const Answer& answer = stream->Finish();
    EXPECT_TRUE(answer.status.ok()) << Describe(answer.status);
    EXPECT_EQ(answer.ids.size(), 60u);
  }
  EXPECT_THAT(router_.process->Stderr(), Not(HasSubstr("warning ridge-")));
}

}  // namespace
}  // namespace ridge::testing
