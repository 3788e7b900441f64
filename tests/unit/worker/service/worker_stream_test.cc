// What a client of a whole worker gets from the real backend: the same tokens alone, again, in company and
// from a resolved request; and text, where there is a real model.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "ridge/v1/inference.grpc.pb.h"
#include "ridge/v1/worker.grpc.pb.h"
#include "worker/service/worker.h"

namespace ridge::worker {
namespace {

using ::testing::StartsWith;

// What a whole stream gave.
struct Stream {
  std::vector<int32_t> ids;
  std::string text;
  std::string bytes;
  v1::Summary summary;
  grpc::Status status;

  void Take(const v1::GenerateResponse& message) {
    for (const v1::ChoiceTokens& choice : message.choices()) {
      for (const v1::Token& token : choice.tokens()) {
        ids.push_back(token.id());
        text += token.text();
        bytes += token.bytes();
      }
    }
    if (message.has_summary()) summary = message.summary();
  }
};

class WorkerStreamTest : public ::testing::Test {
 protected:
  void StartWorker(const std::string& model) {
    WorkerConfig config;
    config.model = model;
    config.listen = "127.0.0.1:0";
    config.metrics_port = -1;
    config.threads = 1;
    config.kv_cache_bytes = 64 << 20;
    absl::StatusOr<std::unique_ptr<Worker>> worker = Worker::Start(config);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    const std::string address = absl::StrCat("127.0.0.1:", worker_->grpc_port());
    const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    inference_ = v1::Inference::NewStub(channel);
    router_side_ = v1::Worker::NewStub(channel);
  }

  Stream Generate(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = inference_->Generate(&context, request);
    Stream stream;
    for (v1::GenerateResponse message; reader->Read(&message);) stream.Take(message);
    stream.status = reader->Finish();
    return stream;
  }

  Stream Execute(const v1::ExecuteRequest& request, v1::ResolvedRequest* resolved) {
    grpc::ClientContext context;
    const auto reader = router_side_->Execute(&context, request);
    Stream stream;
    for (v1::ExecuteResponse message; reader->Read(&message);) {
      if (message.has_resolved()) *resolved = message.resolved();
      stream.Take(message.response());
    }
    stream.status = reader->Finish();
    return stream;
  }

  std::unique_ptr<Worker> worker_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Worker::Stub> router_side_;
};

class TinyWorkerStreamTest : public WorkerStreamTest {
 protected:
  void SetUp() override { StartWorker(std::string(RIDGE_TEST_DATA_DIR) + "/tiny-llama"); }

  // 64 tokens at temperature 1.
  static v1::GenerateRequest Request(const std::vector<int32_t>& prompt) {
    v1::GenerateRequest request;
    request.mutable_prompt_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
    request.mutable_sampling()->set_seed(11);
    request.set_max_tokens(64);
    request.set_ignore_eos(true);
    return request;
  }
};

TEST_F(TinyWorkerStreamTest, GivesTheSameTokensAgainAndInCompany) {
  const v1::GenerateRequest request = Request({5, 6, 7});
  const Stream alone = Generate(request);
  EXPECT_EQ(alone.ids.size(), 64u);
  EXPECT_EQ(Generate(request).ids, alone.ids);
  std::vector<Stream> streams(8);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < streams.size(); ++i) {
    clients.emplace_back([this, i, &request, &streams] {
      // Every other one is company, of another length each.
      const bool company = i % 2 == 1;
      streams[i] =
          Generate(company ? Request(std::vector<int32_t>(20 * i, static_cast<int32_t>(i))) : request);
    });
  }
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_TRUE(streams[i].status.ok()) << streams[i].status.error_message();
    EXPECT_EQ(streams[i].ids == alone.ids, i % 2 == 0) << i;
  }
}

TEST_F(TinyWorkerStreamTest, AResolvedRequestGivesTheTokensOfTheFirst) {
  v1::ExecuteRequest request;
  request.set_internal_id("first");
  *request.mutable_request() = Request({5, 6, 7});
  request.mutable_request()->mutable_sampling()->clear_seed();
  v1::ExecuteRequest again;
  const Stream first = Execute(request, again.mutable_resolved());
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  again.set_internal_id("second");
  v1::ResolvedRequest resolved;
  const Stream second = Execute(again, &resolved);
  ASSERT_TRUE(second.status.ok()) << second.status.error_message();
  EXPECT_EQ(second.ids, first.ids);
  EXPECT_EQ(second.summary.seed(), first.summary.seed());
}

// RIDGE_TEST_MODEL names SmolLM2-135M-Instruct as a GGUF file.
class RealWorkerStreamTest : public WorkerStreamTest {
 protected:
  void SetUp() override {
    const char* path = std::getenv("RIDGE_TEST_MODEL");
    if (path == nullptr || !std::filesystem::exists(path)) {
      ASSERT_EQ(std::getenv("RIDGE_REQUIRE_TOOLS"), nullptr) << "RIDGE_TEST_MODEL names no file";
      GTEST_SKIP() << "RIDGE_TEST_MODEL names no file";
    }
    StartWorker(path);
  }
};

TEST_F(RealWorkerStreamTest, TokenizesAndDetokenizes) {
  v1::TokenizeRequest request;
  request.set_prompt("caf\xC3\xA9<|im_end|>");
  grpc::ClientContext context;
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(inference_->Tokenize(&context, request, &tokens).ok());
  std::string joined;
  for (const std::string& piece : tokens.pieces()) joined += piece;
  EXPECT_EQ(joined, request.prompt());

  v1::DetokenizeRequest back;
  *back.mutable_ids() = tokens.ids();
  back.set_skip_special_tokens(true);
  grpc::ClientContext back_context;
  v1::DetokenizeResponse text;
  ASSERT_TRUE(inference_->Detokenize(&back_context, back, &text).ok());
  EXPECT_EQ(text.text(), "caf\xC3\xA9");

  back.clear_ids();
  back.add_ids(-1);
  grpc::ClientContext bad_context;
  const grpc::Status status = inference_->Detokenize(&bad_context, back, &text);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), StartsWith("ids[0]: "));
}

TEST_F(RealWorkerStreamTest, AChatsTextEndsBeforeTheStopStringAndItsBytesWithIt) {
  v1::GenerateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("What is the capital of France?");
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(24);
  request.add_stop("Paris");
  const Stream stream = Generate(request);
  ASSERT_TRUE(stream.status.ok()) << stream.status.error_message();
  EXPECT_EQ(stream.text, "The capital of France is ");
  EXPECT_EQ(stream.bytes, "The capital of France is Paris");
  EXPECT_EQ(stream.summary.choices(0).matched_stop(), "Paris");
}

}  // namespace
}  // namespace ridge::worker
