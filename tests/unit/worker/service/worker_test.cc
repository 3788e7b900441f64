// The whole worker on a tiny model's recorded weights.
#include "worker/service/worker.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/service/small_model.h"

namespace ridge::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using HealthResponse = grpc::health::v1::HealthCheckResponse;

WorkerConfig TinyConfig() {
  WorkerConfig config;
  config.model = RIDGE_TEST_DATA_DIR "/tiny-llama";
  config.listen = "127.0.0.1:0";
  config.metrics_port = 0;
  config.threads = 1;
  config.kv_cache_bytes = 4 << 20;
  return config;
}

std::shared_ptr<grpc::Channel> ChannelTo(const Worker& worker) {
  return grpc::CreateChannel(absl::StrCat("127.0.0.1:", worker.grpc_port()),
                             grpc::InsecureChannelCredentials());
}

HealthResponse::ServingStatus Health(const std::shared_ptr<grpc::Channel>& channel,
                                     const std::string& service) {
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  HealthResponse response;
  grpc::health::v1::Health::NewStub(channel)->Check(&context, request, &response);
  return response.status();
}

// The whole answer, headers and all.
std::string Get(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t size; (size = read(fd, buffer, sizeof(buffer))) > 0;) answer.append(buffer, size);
  }
  close(fd);
  return answer;
}

std::string StartError(const WorkerConfig& config) {
  return std::string(Worker::Start(config).status().message());
}

TEST(WorkerTest, ServesARecordedModel) {
  const auto worker = Worker::Start(TinyConfig()).value();
  const auto channel = ChannelTo(*worker);
  EXPECT_EQ(Health(channel, ""), HealthResponse::SERVING);
  EXPECT_EQ(Health(channel, "ridge.v1.Inference"), HealthResponse::SERVING);
  EXPECT_EQ(Health(channel, "ridge.v1.Worker"), HealthResponse::SERVING);
  EXPECT_THAT(Get(worker->metrics_port(), "/readyz"), StartsWith("HTTP/1.1 200"));

  grpc::ClientContext context;
  const auto stub = v1::Inference::NewStub(channel);
  const auto reader = stub->Generate(
      &context,
      FromText<v1::GenerateRequest>("prompt_ids { ids: 71 } max_tokens: 5 logprobs: 0 ignore_eos: true "
                                    "sampling { temperature: 0 }"));
  std::vector<TokenId> ids;
  v1::GenerateResponse message;
  v1::Summary summary;
  while (reader->Read(&message)) {
    for (const v1::ChoiceTokens& choice : message.choices()) {
      for (const v1::Token& token : choice.tokens()) {
        ids.push_back(token.id());
        EXPECT_LT(token.logprob(), 0);
        EXPECT_EQ(token.text(), "");
      }
    }
    if (message.has_summary()) summary = message.summary();
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_THAT(ids, testing::ElementsAre(122, 253, 59, 59, 253));  // tests/golden/tiny-llama/golden.json
  EXPECT_EQ(summary.model(), "tiny-llama");
  EXPECT_EQ(summary.choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);

  const std::string metrics = Get(worker->metrics_port(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("ridge_generation_tokens_total 5\n"));
  EXPECT_THAT(metrics, HasSubstr("ridge_request_success_total{finished_reason=\"length\"} 1\n"));
  const std::string status = Get(worker->metrics_port(), "/statusz");
  EXPECT_THAT(status, AllOf(HasSubstr("kv_cache_bytes=4194304"), HasSubstr("ready")));
}

TEST(WorkerTest, DrainLetsOpenStreamsCompleteAndTakesNoMore) {
  WorkerConfig config = TinyConfig();
  config.metrics_port = -1;
  const auto worker = Worker::Start(config).value();
  EXPECT_EQ(worker->metrics_port(), -1);
  const auto channel = ChannelTo(*worker);
  const auto stub = v1::Inference::NewStub(channel);
  v1::GetModelResponse model;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub->GetModel(&context, v1::GetModelRequest(), &model).ok());
  }
  grpc::ClientContext context;
  v1::GenerateRequest request = FromText<v1::GenerateRequest>("prompt_ids { ids: 71 } ignore_eos: true");
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  int tokens = message.choices(0).tokens_size();

  std::thread drain([&worker] { worker->Drain(); });
  while (reader->Read(&message)) {
    for (const v1::ChoiceTokens& choice : message.choices()) tokens += choice.tokens_size();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(message.summary().choices(0).finish_reason(), v1::FINISH_REASON_CONTEXT);
  EXPECT_EQ(tokens, model.context_length() - 1);
  drain.join();

  grpc::ClientContext late;
  EXPECT_EQ(stub->GetModel(&late, v1::GetModelRequest(), &model).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(WorkerTest, ADrainByCallMakesItNotReady) {
  const auto worker = Worker::Start(TinyConfig()).value();
  const auto channel = ChannelTo(*worker);
  grpc::ClientContext context;
  v1::DrainResponse response;
  ASSERT_TRUE(v1::Worker::NewStub(channel)->Drain(&context, v1::DrainRequest(), &response).ok());
  EXPECT_EQ(Health(channel, ""), HealthResponse::SERVING);
  EXPECT_EQ(Health(channel, "ridge.v1.Inference"), HealthResponse::NOT_SERVING);
  EXPECT_EQ(Health(channel, "ridge.v1.Worker"), HealthResponse::NOT_SERVING);
  EXPECT_THAT(Get(worker->metrics_port(), "/readyz"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Get(worker->metrics_port(), "/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST(WorkerTest, KvMemoryLimitsTheContext) {
  WorkerConfig config = TinyConfig();
  config.kv_cache_bytes = 1;
  EXPECT_THAT(StartError(config), StartsWith("--kv_cache_bytes: 1 is less than one block of 16 tokens"));
  config.kv_cache_bytes = 40000;
  const auto worker = Worker::Start(config).value();
  grpc::ClientContext context;
  v1::GetModelResponse model;
  ASSERT_TRUE(
      v1::Inference::NewStub(ChannelTo(*worker))->GetModel(&context, v1::GetModelRequest(), &model).ok());
  EXPECT_EQ(model.context_length(), model.kv_capacity_tokens());
  EXPECT_GE(model.context_length(), 16);
}

TEST(WorkerTest, EveryEngineServesAContextThatItsMemoryLimits) {
  for (const std::string& engine : PresetNames()) {
    SCOPED_TRACE(engine);
    WorkerConfig config = TinyConfig();
    config.policy.engine = engine;
    config.kv_cache_bytes = 40000;
    const auto worker = Worker::Start(config).value();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::GenerateRequest request;
    request.mutable_prompt_ids()->add_ids(1);
    request.set_ignore_eos(true);
    const auto stream = v1::Inference::NewStub(ChannelTo(*worker))->Generate(&context, request);
    v1::GenerateResponse response, last;
    while (stream->Read(&response)) last = response;
    EXPECT_TRUE(stream->Finish().ok());
    ASSERT_EQ(last.summary().choices_size(), 1);
    EXPECT_EQ(last.summary().choices(0).finish_reason(), v1::FINISH_REASON_CONTEXT);
  }
}

TEST(WorkerTest, ThePrefixCacheMayHaveThreeTimesTheMemoryOfAllSequencesAtTheirLimits) {
  WorkerConfig config = TinyConfig();
  config.max_batch = 2;
  config.max_context = 48;
  config.kv_cache_bytes = 64 << 20;
  for (const bool prefix_cache : {false, true}) {
    config.policy.prefix_cache = prefix_cache ? "on" : "off";
    const auto worker = Worker::Start(config).value();
    grpc::ClientContext context;
    v1::GetModelResponse model;
    ASSERT_TRUE(
        v1::Inference::NewStub(ChannelTo(*worker))->GetModel(&context, v1::GetModelRequest(), &model).ok());
    EXPECT_EQ(model.kv_capacity_tokens(), prefix_cache ? 4 * 2 * 48 : 2 * 48);
  }
}

TEST(WorkerTest, MaxContextLimitsTheContext) {
  WorkerConfig config = TinyConfig();
  config.max_context = 100;
  config.served_model_name = "mine";
  const auto worker = Worker::Start(config).value();
  grpc::ClientContext context;
  v1::GetModelResponse model;
  ASSERT_TRUE(
      v1::Inference::NewStub(ChannelTo(*worker))->GetModel(&context, v1::GetModelRequest(), &model).ok());
  EXPECT_EQ(model.context_length(), 100);
  EXPECT_EQ(model.name(), "mine");
  EXPECT_FALSE(model.has_tokenizer());
  config.max_context = 1000000;
  EXPECT_THAT(StartError(config), StartsWith("--max_context: 1000000 is more than the model's "));
}

TEST(WorkerTest, AFailedStartNamesFlagOrFile) {
  WorkerConfig config = TinyConfig();
  config.model = "/nonexistent/model.gguf";
  EXPECT_THAT(StartError(config), StartsWith("--model: /nonexistent/model.gguf"));

  config = TinyConfig();
  config.chat_template = "chatml";
  EXPECT_EQ(StartError(config), "--chat_template: the model has no tokenizer");

  config = TinyConfig();
  config.default_sampling = "model";
  EXPECT_THAT(StartError(config), StartsWith("--default_sampling: "));

  config = TinyConfig();
  const std::string truncated = absl::StrCat(testing::TempDir(), "/truncated.gguf");
  std::ofstream(truncated, std::ios::binary) << "GGUF\x03";
  config.model = truncated;
  EXPECT_THAT(StartError(config), StartsWith("--model: " + truncated));
}

TEST(WorkerTest, AModelThatIsAPipeIsNotWaitedFor) {
  WorkerConfig config = TinyConfig();
  config.model = absl::StrCat(testing::TempDir(), "/pipe.gguf");
  unlink(config.model.c_str());
  ASSERT_EQ(mkfifo(config.model.c_str(), 0600), 0);
  EXPECT_EQ(StartError(config), absl::StrCat("--model: ", config.model, ": not a file or a directory"));
}

// Found before the model is read: here it is not even there.
TEST(WorkerTest, ATakenPortNamesItsFlag) {
  const auto first = Worker::Start(TinyConfig()).value();
  WorkerConfig config = TinyConfig();
  config.model = "/nonexistent/model.gguf";
  config.listen = absl::StrCat("127.0.0.1:", first->grpc_port());
  EXPECT_THAT(StartError(config), StartsWith("--listen: cannot listen on 127.0.0.1:"));
  config.listen = "127.0.0.1:0";
  config.metrics_port = first->metrics_port();
  EXPECT_THAT(StartError(config), StartsWith("--metrics_port: cannot listen on 127.0.0.1:"));
}

}  // namespace
}  // namespace ridge::worker
