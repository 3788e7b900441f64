#include "bench/ask.h"

#include <sstream>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "ridge/v1/inference.grpc.pb.h"

ABSL_DECLARE_FLAG(std::string, prompt);
ABSL_DECLARE_FLAG(std::string, stop);

namespace ridge::bench {
namespace {

using ::testing::ElementsAre;

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Answers Generate with fixed messages and a status.
class FixedServer final : public v1::Inference::Service {
 public:
  FixedServer(std::vector<v1::GenerateResponse> messages, grpc::Status status)
      : messages_(std::move(messages)), status_(std::move(status)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  AskConfig Config() const {
    AskConfig config;
    config.target = absl::StrCat("127.0.0.1:", port_);
    return config;
  }

  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest*,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    for (const v1::GenerateResponse& message : messages_) writer->Write(message);
    return status_;
  }

 private:
  const std::vector<v1::GenerateResponse> messages_;
  const grpc::Status status_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

v1::GenerateResponse Text(const std::vector<std::string>& pieces) {
  v1::GenerateResponse message;
  v1::ChoiceTokens* choice = message.add_choices();
  for (const std::string& piece : pieces) {
    v1::Token* token = choice->add_tokens();
    token->set_text(piece);
    token->set_bytes("x");
  }
  return message;
}

v1::GenerateResponse WithSummary(v1::GenerateResponse message) {
  v1::Summary* summary = message.mutable_summary();
  summary->set_seed(18446744073709551615u);
  summary->set_model("tiny");
  summary->mutable_usage()->set_prompt_tokens(4);
  summary->mutable_usage()->set_completion_tokens(4);
  summary->add_choices()->set_finish_reason(v1::FINISH_REASON_LENGTH);
  return message;
}

TEST(AskTest, WritesTheTextAndThenTheFigures) {
  const FixedServer server({Text({"Rh"}), Text({""}), Text({"\u00f4ne"}), WithSummary(Text({"."}))},
                           grpc::Status::OK);
  std::ostringstream text;
  std::ostringstream report;
  EXPECT_TRUE(Ask(server.Config(), text, report).ok());
  EXPECT_EQ(text.str(), "Rh\u00f4ne.\n");
  EXPECT_THAT(report.str(), StartsWith("4 prompt + 4 completion tokens, finish: length, TTFT "));
  EXPECT_THAT(report.str(), HasSubstr(" tokens/s, seed 18446744073709551615, model tiny\n"));
}

TEST(AskTest, SaysHowManyTokensSharedAMessage) {
  const FixedServer server({Text({"a"}), Text({"b", "c"}), WithSummary(Text({"d"}))}, grpc::Status::OK);
  std::ostringstream text;
  std::ostringstream report;
  EXPECT_TRUE(Ask(server.Config(), text, report).ok());
  EXPECT_THAT(report.str(),
              HasSubstr(" tokens/s; 1 of 4 tokens shared the message of the one before, an ITL of 0, seed "));
}

TEST(AskTest, WithoutTextTheIdsAreShown) {
  v1::GenerateResponse message;
  v1::ChoiceTokens* choice = message.add_choices();
  choice->add_tokens()->set_id(5);
  choice->add_tokens()->set_id(17);
  const FixedServer server({WithSummary(message)}, grpc::Status::OK);
  std::ostringstream text;
  std::ostringstream report;
  EXPECT_TRUE(Ask(server.Config(), text, report).ok());
  EXPECT_EQ(text.str(), "5 17 \n");
}

TEST(AskTest, AnErrorIsTheCallsAndEndsTheLine) {
  const FixedServer server({Text({"half"})}, grpc::Status(grpc::StatusCode::UNAVAILABLE, "worker lost"));
  std::ostringstream text;
  std::ostringstream report;
  EXPECT_EQ(Ask(server.Config(), text, report), absl::UnavailableError("worker lost"));
  EXPECT_EQ(text.str(), "half\n");
  EXPECT_EQ(report.str(), "");
}

TEST(AskTest, AStreamWithoutASummaryIsAnError) {
  const FixedServer server({Text({"half"})}, grpc::Status::OK);
  std::ostringstream text;
  std::ostringstream report;
  EXPECT_EQ(Ask(server.Config(), text, report).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(text.str(), "half\n");
}

TEST(AskTest, AnAnswerThatCannotBeWrittenIsAnError) {
  const FixedServer server({WithSummary(Text({"all"}))}, grpc::Status::OK);
  std::ostringstream text;
  text.setstate(std::ios::badbit);  // as a full disk leaves it
  std::ostringstream report;
  EXPECT_EQ(Ask(server.Config(), text, report).code(), absl::StatusCode::kDataLoss);
}

TEST(AskTest, AProxyOfTheEnvironmentIsNotUsed) {
  setenv("http_proxy", "http://127.0.0.1:9", 1);
  const FixedServer server({WithSummary(Text({"all"}))}, grpc::Status::OK);
  std::ostringstream text;
  std::ostringstream report;
  AskConfig config = server.Config();
  config.timeout = absl::Seconds(20);
  const absl::Status status = Ask(config, text, report);
  unsetenv("http_proxy");
  EXPECT_TRUE(status.ok()) << status;
}

class AskConfigTest : public ::testing::Test {
 protected:
  AskConfigTest() { absl::SetFlag(&FLAGS_prompt, "hi"); }
  ~AskConfigTest() override {
    absl::SetFlag(&FLAGS_prompt, "");
    absl::SetFlag(&FLAGS_stop, "");
  }
};

TEST_F(AskConfigTest, AStopStringMayHoldACommaOrABackslash) {
  absl::SetFlag(&FLAGS_stop, R"(a,b\,c\\,\n)");
  const AskConfig config = AskConfigFromFlags().value();
  EXPECT_THAT(config.request.stop(), ElementsAre("a", "b,c\\", "\\n"));
  absl::SetFlag(&FLAGS_stop, R"(\,)");
  EXPECT_THAT(AskConfigFromFlags().value().request.stop(), ElementsAre(","));
  absl::SetFlag(&FLAGS_stop, "");
  EXPECT_EQ(AskConfigFromFlags().value().request.stop_size(), 0);
}

TEST_F(AskConfigTest, AnEmptyStopStringNamesTheFlag) {
  for (const char* list : {",", "a,", ",a", "a,,b"}) {
    absl::SetFlag(&FLAGS_stop, list);
    EXPECT_THAT(std::string(AskConfigFromFlags().status().message()), StartsWith("--stop: \"")) << list;
  }
}

TEST_F(AskConfigTest, TextThatIsNotUtf8NamesItsFlag) {
  absl::SetFlag(&FLAGS_prompt, "caf\xe9");
  EXPECT_EQ(AskConfigFromFlags().status().message(), "--prompt: not valid UTF-8");
}

TEST(AskTest, AServerThatIsNotThereIsAnError) {
  AskConfig config;
  config.target = "127.0.0.1:1";  // nobody listens
  config.timeout = absl::Milliseconds(200);
  std::ostringstream text;
  std::ostringstream report;
  EXPECT_FALSE(Ask(config, text, report).ok());
  EXPECT_EQ(text.str(), "");
}

}  // namespace
}  // namespace ridge::bench
