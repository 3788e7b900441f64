// A worker and a router, as a client sees them: streams, their three ways to end early, and what happens to
// them when a process is told to stop or dies.

#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/e2e/client.h"
#include "tests/e2e/servers.h"

namespace ridge::testing {
namespace {

const std::vector<int32_t> kPrompt = {71, 5, 301, 17, 250, 9};

// Takes seconds: whatever is done after its first message is done while it is open.
constexpr int32_t kLongStream = 4000;
// Never comes to its end.
constexpr int32_t kEndlessStream = 30000;

class EndToEndTest : public ::testing::Test {
 protected:
  void StartWorkers(int count) {
    absl::StatusOr<std::string> model = WriteLongContextModel(directory_);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *model;
    for (int i = 0; i < count; ++i) {
      absl::StatusOr<Server> worker = StartWorker(WorkerFlags());
      ASSERT_TRUE(worker.ok()) << worker.status();
      workers_.push_back(*std::move(worker));
    }
    std::vector<std::string> addresses;
    for (const Server& worker : workers_) addresses.push_back(worker.grpc);
    // A worker that is stopped by a signal shall not count as silent.
    absl::StatusOr<Server> router =
        StartRouter(addresses, {"--report-timeout", "10m", "--drain-timeout", "2m"});
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
  }

  std::vector<std::string> WorkerFlags() const {
    return {"--model", model_, "--kv-cache-bytes", "64MiB", "--drain-timeout", "2m"};
  }

  double WorkerMetric(const std::string& series, int worker = 0) const {
    const absl::StatusOr<MetricsPage> page = MetricsPage::Scrape(workers_[worker].metrics);
    return page.ok() ? page->Value(series) : -1;
  }

  double RouterMetric(const std::string& series) const {
    const absl::StatusOr<MetricsPage> page = MetricsPage::Scrape(router_.metrics);
    return page.ok() ? page->Value(series) : -1;
  }

  double CallsSentTo(int worker) const {
    return RouterMetric("ridge_router_worker_requests_total{worker=\"" + workers_[worker].grpc + "\"}");
  }

  // All memory is back and nothing runs.
  bool WorkerIsIdle() const {
    return WorkerMetric("ridge_kv_cache_usage_ratio") == 0 && WorkerMetric("ridge_num_requests_running") == 0;
  }

  // Tells `server` to stop while a stream through the router is open; the stream is to complete all the same.
  void StopWithAnOpenStream(Server* server) {
    Client client(router_.grpc);
    const std::unique_ptr<Stream> stream = client.Open(GreedyRequest(kPrompt, kLongStream));
    ASSERT_TRUE(stream->Read()) << Describe(stream->Finish().status);
    server->process->Signal(SIGTERM);
    const auto draining = server->process->WaitForStderr("draining", kPatience);
    ASSERT_TRUE(draining.ok()) << draining.status();
    ASSERT_EQ(WorkerMetric("ridge_num_requests_running"), 1) << "the stream ended before the signal came";

    // Whether the port is closed already or the server says that it drains: the code is the same.
    const Answer refused = Client(server->grpc).Ask(GreedyRequest(kPrompt, 1));
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE) << Describe(refused.status);

    const Answer& answer = stream->Finish();
    EXPECT_TRUE(answer.status.ok()) << Describe(answer.status);
    EXPECT_EQ(answer.ids.size(), static_cast<size_t>(kLongStream));
    EXPECT_EQ(server->process->WaitForExit(kPatience), 0) << server->process->Stderr();
  }

  TemporaryDirectory directory_;
  std::string model_;
  std::vector<Server> workers_;
  Server router_;
};

// By choice, in order: id, log-probability, number of the most likely tokens.
using Generated = std::map<int32_t, std::vector<std::tuple<int32_t, float, int>>>;

Generated AskForChoices(const std::string& address, const v1::GenerateRequest& request,
                        v1::Summary* summary) {
  Client client(address);
  grpc::ClientContext context;
  const auto reader = client.stub()->Generate(&context, request);
  Generated generated;
  for (v1::GenerateResponse message; reader->Read(&message);) {
    for (const v1::ChoiceTokens& choice : message.choices()) {
      for (const v1::Token& token : choice.tokens())
        generated[choice.choice()].emplace_back(token.id(), token.logprob(), token.top_logprobs_size());
    }
    if (message.has_summary()) *summary = message.summary();
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << Describe(status);
  return generated;
}

TEST_F(EndToEndTest, TheRouterPassesEverySamplingFieldAndAllChoices) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(1));
  v1::GenerateRequest request = GreedyRequest(kPrompt, 40);
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_temperature(1);
  sampling.set_seed(7);
  sampling.set_repetition_penalty(1.2f);
  sampling.set_presence_penalty(0.5f);
  sampling.set_frequency_penalty(0.25f);
  (*sampling.mutable_logit_bias())[11] = 3;
  sampling.add_bad_token_ids(5);
  request.set_min_tokens(10);
  request.add_stop_token_ids(11);
  request.set_logprobs(3);
  request.set_prompt_logprobs(1);
  request.set_echo(true);
  request.set_truncate_prompt_tokens(5);
  request.set_n(3);
  v1::Summary direct_summary, summary;
  const Generated direct = AskForChoices(workers_[0].grpc, request, &direct_summary);
  const Generated relayed = AskForChoices(router_.grpc, request, &summary);
  EXPECT_EQ(relayed, direct);
  ASSERT_EQ(summary.choices_size(), 3);
  int32_t tokens = 0;
  for (int32_t choice = 0; choice < 3; ++choice) {
    const int32_t generated = summary.choices(choice).completion_tokens();
    EXPECT_GE(generated, 10);
    const int32_t echoed = choice == 0 ? 5 : 0;
    ASSERT_EQ(relayed.at(choice).size(), static_cast<size_t>(echoed + generated));
    for (size_t i = 0; i < relayed.at(choice).size(); ++i) {
      const auto& [id, logprob, num_top] = relayed.at(choice)[i];
      const bool is_prompt = i < static_cast<size_t>(echoed);
      EXPECT_EQ(num_top, !is_prompt ? 3 : i > 0 ? 1 : 0);
      if (is_prompt) {
        EXPECT_EQ(id, kPrompt[i + 1]);
      } else {
        EXPECT_NE(id, 5);
        EXPECT_LT(logprob, 0);
      }
    }
    tokens += generated;
  }
  EXPECT_EQ(summary.usage().prompt_tokens(), 5);
  EXPECT_EQ(summary.usage().completion_tokens(), tokens);
  EXPECT_NE(relayed.at(1), relayed.at(2));
}

TEST_F(EndToEndTest, TheRouterStreamsTheWorkersTokens) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(1));
  v1::GenerateRequest request = GreedyRequest(kPrompt, 200);
  request.set_logprobs(0);
  request.set_request_id("mine");
  const Answer direct = Client(workers_[0].grpc).Ask(request);
  const Answer relayed = Client(router_.grpc).Ask(request);
  ASSERT_TRUE(direct.status.ok()) << Describe(direct.status);
  ASSERT_TRUE(relayed.status.ok()) << Describe(relayed.status);
  EXPECT_EQ(direct.ids.size(), 200u);
  EXPECT_EQ(relayed.ids, direct.ids);
  EXPECT_EQ(direct.logprobs.size(), 200u);
  EXPECT_EQ(relayed.logprobs, direct.logprobs);
  EXPECT_EQ(relayed.summary->choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(relayed.summary->usage().prompt_tokens(), static_cast<int32_t>(kPrompt.size()));
  EXPECT_EQ(relayed.summary->numerics_id(), direct.summary->numerics_id());
  EXPECT_EQ(relayed.summary->request_id(), "mine");
}

TEST_F(EndToEndTest, TheSummarysSeedGivesTheSameTokensAgain) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(1));
  v1::GenerateRequest request = GreedyRequest(kPrompt, 50);
  request.mutable_sampling()->set_temperature(1);
  Client client(router_.grpc);
  const Answer first = client.Ask(request);
  ASSERT_TRUE(first.status.ok()) << Describe(first.status);
  const Answer other = client.Ask(request);
  request.mutable_sampling()->set_seed(first.summary->seed());
  const Answer again = client.Ask(request);
  EXPECT_EQ(again.ids, first.ids);
  EXPECT_NE(other.ids, first.ids);
}

TEST_F(EndToEndTest, ACancelledStreamGivesItsMemoryBack) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(1));
  Client client(router_.grpc);
  const std::unique_ptr<Stream> stream = client.Open(GreedyRequest(kPrompt, kEndlessStream));
  while (stream->answer().ids.size() < 20) ASSERT_TRUE(stream->Read()) << Describe(stream->Finish().status);
  EXPECT_GT(WorkerMetric("ridge_kv_cache_usage_ratio"), 0);
  stream->Cancel();
  EXPECT_EQ(stream->Finish().status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return WorkerIsIdle(); }));
  EXPECT_TRUE(Eventually(
      [&] { return WorkerMetric("ridge_request_success_total{finished_reason=\"cancelled\"}") == 1; }));
  EXPECT_TRUE(Eventually([&] { return RouterMetric("ridge_router_requests_in_flight") == 0; }));
  EXPECT_EQ(RouterMetric("ridge_router_requests_total{code=\"CANCELLED\"}"), 1) << router_.process->Stderr();
}

TEST_F(EndToEndTest, AStreamEndsAtItsDeadline) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(1));
  Client client(router_.grpc);
  const Answer answer = client.Open(GreedyRequest(kPrompt, kEndlessStream), absl::Seconds(2))->Finish();
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << Describe(answer.status);
  EXPECT_TRUE(Eventually([&] { return WorkerIsIdle(); }));
  EXPECT_TRUE(Eventually(
      [&] { return WorkerMetric("ridge_request_success_total{finished_reason=\"deadline\"}") == 1; }));
  EXPECT_TRUE(Eventually(
      [&] { return RouterMetric("ridge_router_requests_total{code=\"DEADLINE_EXCEEDED\"}") == 1; }));
}

TEST_F(EndToEndTest, AWorkerThatIsToldToStopCompletesItsStream) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(1));
  StopWithAnOpenStream(&workers_[0]);
}

TEST_F(EndToEndTest, ARouterThatIsToldToStopCompletesItsStream) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(1));
  StopWithAnOpenStream(&router_);
}

TEST_F(EndToEndTest, ADrainThatTakesTooLongSaysWhatItCut) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(1));
  absl::StatusOr<Server> worker =
      StartWorker({"--model", model_, "--kv-cache-bytes", "64MiB", "--drain-timeout", "200ms"});
  ASSERT_TRUE(worker.ok()) << worker.status();
  absl::StatusOr<Server> router = StartRouter({workers_[0].grpc}, {"--drain-timeout", "200ms"});
  ASSERT_TRUE(router.ok()) << router.status();
  for (Server* server : {&*worker, &*router}) {
    Client client(server->grpc);
    const std::unique_ptr<Stream> stream = client.Open(GreedyRequest(kPrompt, kEndlessStream));
    ASSERT_TRUE(stream->Read()) << Describe(stream->Finish().status);
    server->process->Signal(SIGTERM);
    const Answer& answer = stream->Finish();
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE) << Describe(answer.status);
    EXPECT_NE(answer.status.error_message().find("stops: the stream was still open after 200ms"),
              std::string::npos)
        << Describe(answer.status);
    EXPECT_EQ(server->process->WaitForExit(kPatience), 0);
    EXPECT_NE(server->process->Stderr().find("warning ridge-"), std::string::npos);
    EXPECT_NE(server->process->Stderr().find("--drain_timeout: streams cut off: 1"), std::string::npos)
        << server->process->Stderr();
  }
}

TEST_F(EndToEndTest, IdleProcessesStopAtOnce) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(1));
  for (Server* server : {&router_, &workers_[0]}) {
    server->process->Signal(SIGTERM);
    EXPECT_EQ(server->process->WaitForExit(kPatience), 0) << server->process->Stderr();
  }
}

TEST_F(EndToEndTest, TwoWorkersShareConcurrentRequests) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(2));
  constexpr int kCalls = 8;
  const v1::GenerateRequest request = GreedyRequest(kPrompt, 100);
  Client client(router_.grpc);
  std::vector<Answer> answers(kCalls);
  std::vector<std::thread> threads;
  for (Answer& answer : answers) threads.emplace_back([&] { answer = client.Ask(request); });
  for (std::thread& thread : threads) thread.join();
  for (const Answer& answer : answers) {
    ASSERT_TRUE(answer.status.ok()) << Describe(answer.status);
    EXPECT_EQ(answer.ids, answers[0].ids) << "tokens depend on the request alone";
  }
  EXPECT_GE(CallsSentTo(0), 1);
  EXPECT_GE(CallsSentTo(1), 1);
  EXPECT_EQ(CallsSentTo(0) + CallsSentTo(1), kCalls);
}

TEST_F(EndToEndTest, AWorkerLostBeforeOutputIsReplacedByAnother) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(2));
  const v1::GenerateRequest request = GreedyRequest(kPrompt, 100);
  Client client(router_.grpc);
  // It takes calls and answers none.
  workers_[0].process->Signal(SIGSTOP);
  const std::unique_ptr<Stream> first = client.Open(request);
  const std::unique_ptr<Stream> second = client.Open(request);
  ASSERT_TRUE(Eventually([&] { return CallsSentTo(0) == 1 && CallsSentTo(1) == 1; }));
  workers_[0].process->Signal(SIGKILL);
  const Answer& one = first->Finish();
  const Answer& other = second->Finish();
  ASSERT_TRUE(one.status.ok()) << Describe(one.status);
  ASSERT_TRUE(other.status.ok()) << Describe(other.status);
  EXPECT_EQ(one.ids, other.ids);
  EXPECT_EQ(CallsSentTo(1), 2);
}

TEST_F(EndToEndTest, AWorkerLostAfterOutputEndsTheStreamAndComesBack) {
  ASSERT_NO_FATAL_FAILURE(StartWorkers(1));
  Client client(router_.grpc);
  const std::unique_ptr<Stream> stream = client.Open(GreedyRequest(kPrompt, kEndlessStream));
  ASSERT_TRUE(stream->Read()) << Describe(stream->Finish().status);
  workers_[0].process->Signal(SIGKILL);
  const Answer& answer = stream->Finish();
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE) << Describe(answer.status);
  EXPECT_GE(answer.ids.size(), 1u);

  const auto readiness = [&] {
    const absl::StatusOr<HttpReply> reply = HttpGet(router_.metrics, "/readyz");
    return reply.ok() ? reply->code : 0;
  };
  EXPECT_TRUE(Eventually([&] { return readiness() == 503; }));
  EXPECT_EQ(client.Ask(GreedyRequest(kPrompt, 1)).status.error_code(), grpc::StatusCode::UNAVAILABLE);

  std::vector<std::string> flags = WorkerFlags();
  flags.insert(flags.end(), {"--listen", workers_[0].grpc});
  absl::StatusOr<Server> revived = StartWorker(flags);
  ASSERT_TRUE(revived.ok()) << revived.status();
  EXPECT_TRUE(Eventually([&] { return readiness() == 200; }));
  const Answer after = client.Ask(GreedyRequest(kPrompt, 10));
  EXPECT_TRUE(after.status.ok()) << Describe(after.status);
}

}  // namespace
}  // namespace ridge::testing
