// What operators see of a worker and a router: every documented metric, health, and reflection.

#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "gtest/gtest.h"
#include "tests/e2e/client.h"
#include "tests/e2e/servers.h"

namespace ridge::testing {
namespace {

constexpr int32_t kContext = 8192;
constexpr int64_t kKvBytesPerToken = 512;  // of the model that the tests write
constexpr int32_t kVocabulary = 512;

std::vector<int32_t> Prompt(int tokens) {
  std::vector<int32_t> ids;
  for (int i = 0; i < tokens; ++i) ids.push_back((i * 37 + 11) % kVocabulary);
  return ids;
}

struct DocumentedMetric {
  std::string name;
  std::string type;
};

// The tables of docs/metrics.md, by the page's sections ("Worker", "Router", "Numerics").
std::map<std::string, std::vector<DocumentedMetric>> DocumentedMetrics() {
  const std::regex row("^\\| `(ridge_\\w+)` \\| (histogram|gauge|counter) \\|.*");
  std::map<std::string, std::vector<DocumentedMetric>> sections;
  std::ifstream page(RIDGE_SOURCE_DIR "/docs/metrics.md");
  std::string section;
  std::smatch match;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("## ", 0) == 0) section = line.substr(3);
    if (std::regex_match(line, match, row)) sections[section].push_back({match[1], match[2]});
  }
  return sections;
}

// What shows that the metric was ever touched.
std::string MovingSeries(const DocumentedMetric& metric) {
  return metric.type == "histogram" ? metric.name + "_count" : metric.name;
}

// One worker with two slots and KV memory for one context, behind one router.
class ObservabilityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::string> model = WriteLongContextModel(directory_);
    ASSERT_TRUE(model.ok()) << model.status();
    absl::StatusOr<Server> worker =
        StartWorker({"--model", *model, "--kv-cache-bytes", absl::StrCat(kContext * kKvBytesPerToken),
                     "--max-batch", "2", "--max-context", absl::StrCat(kContext)});
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    absl::StatusOr<Server> router = StartRouter({worker_.grpc});
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
  }

  MetricsPage Scrape(const Server& server) {
    absl::StatusOr<MetricsPage> page = MetricsPage::Scrape(server.metrics);
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? *std::move(page) : MetricsPage();
  }

  double Finished(const std::string& reason) {
    return Scrape(worker_).Value(
        absl::StrCat("ridge_request_success_total{finished_reason=\"", reason, "\"}"));
  }

  double Ended(const std::string& code) {
    return Scrape(router_).Value(absl::StrCat("ridge_router_requests_total{code=\"", code, "\"}"));
  }

  // Two streams that run and one that waits, until the gauges of both processes have shown them.
  void MoveGauges() {
    Client client(router_.grpc);
    const std::unique_ptr<Stream> first = client.Open(GreedyRequest(Prompt(5), kContext - 5));
    ASSERT_TRUE(first->Read()) << Describe(first->Finish().status);
    const std::unique_ptr<Stream> second = client.Open(GreedyRequest(Prompt(100), kContext - 100));
    const std::unique_ptr<Stream> third = client.Open(GreedyRequest(Prompt(5), kContext - 5));
    EXPECT_TRUE(Eventually([&] {
      const MetricsPage worker = Scrape(worker_);
      const MetricsPage router = Scrape(router_);
      return worker.Value("ridge_num_requests_running") == 2 &&
             worker.Value("ridge_num_requests_waiting") == 1 &&
             worker.Value("ridge_kv_cache_usage_ratio") > 0 &&
             worker.Value("ridge_kv_cache_usage_ratio") <= 1 &&
             router.Value("ridge_router_requests_in_flight") == 3;
    }));
    for (Stream* stream : {first.get(), second.get(), third.get()}) {
      stream->Cancel();
      EXPECT_EQ(stream->Finish().status.error_code(), grpc::StatusCode::CANCELLED);
    }
  }

  // Two requests that fit at first and not to their ends: the younger one gives way and is computed again.
  void RunOutOfMemory() {
    constexpr int32_t kPrompt = kContext / 2 - kContext / 80;
    constexpr int32_t kTokens = kContext / 40 + 64;
    Client client(router_.grpc);
    const std::unique_ptr<Stream> first = client.Open(GreedyRequest(Prompt(kPrompt), kTokens));
    std::vector<int32_t> other = Prompt(kPrompt);
    other[0] = 7;  // shares no beginning
    const std::unique_ptr<Stream> second = client.Open(GreedyRequest(other, kTokens));
    EXPECT_TRUE(first->Finish().status.ok());
    EXPECT_TRUE(second->Finish().status.ok());
    const MetricsPage page = Scrape(worker_);
    EXPECT_GE(page.Value("ridge_num_preemptions_total"), 1);
    EXPECT_GE(page.Value("ridge_prefix_cache_evictions_total"), 1);
  }

  // One request for each way to finish, except `error` and `cancelled`.
  void FinishInEveryWay() {
    Client client(router_.grpc);
    const Answer length = client.Ask(GreedyRequest(Prompt(5), 8));
    ASSERT_TRUE(length.status.ok()) << Describe(length.status);
    EXPECT_EQ(length.summary->choices(0).finish_reason(), v1::FINISH_REASON_LENGTH);

    v1::GenerateRequest stopped = GreedyRequest(Prompt(5), 8);
    stopped.add_stop_token_ids(length.ids[3]);
    const Answer stop = client.Ask(stopped);
    ASSERT_TRUE(stop.status.ok()) << Describe(stop.status);
    EXPECT_EQ(stop.summary->choices(0).finish_reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(stop.summary->choices(0).matched_stop_id(), length.ids[3]);

    const Answer context = client.Ask(GreedyRequest(Prompt(kContext - 5), 100));
    ASSERT_TRUE(context.status.ok()) << Describe(context.status);
    EXPECT_EQ(context.summary->choices(0).finish_reason(), v1::FINISH_REASON_CONTEXT);
    EXPECT_EQ(context.ids.size(), 5u);

    // The client's timer and the worker's race: where the client's wins, the worker counts a cancelled
    // request.
    EXPECT_TRUE(Eventually([&] {
      const auto stream = client.Open(GreedyRequest(Prompt(5), kContext - 5), absl::Milliseconds(100));
      EXPECT_EQ(stream->Finish().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
      return Finished("deadline") >= 1 && Ended("DEADLINE_EXCEEDED") >= 1;
    }));

    v1::GenerateRequest bad = GreedyRequest({}, 1);
    EXPECT_EQ(client.Ask(bad).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }

  grpc::Status CheckHealth(const Server& server, const std::string& service,
                           grpc::health::v1::HealthCheckResponse* response) {
    Client client(server.grpc);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    return grpc::health::v1::Health::NewStub(client.channel())->Check(&context, request, response);
  }

  TemporaryDirectory directory_;
  Server worker_;
  Server router_;
};

TEST_F(ObservabilityTest, EveryDocumentedMetricMoves) {
  ASSERT_NO_FATAL_FAILURE(MoveGauges());
  ASSERT_NO_FATAL_FAILURE(FinishInEveryWay());
  ASSERT_NO_FATAL_FAILURE(RunOutOfMemory());
  EXPECT_TRUE(Eventually([&] {
    return Scrape(worker_).Value("ridge_kv_cache_usage_ratio") == 0 &&
           Scrape(router_).Value("ridge_router_requests_in_flight") == 0 && Finished("cancelled") >= 3;
  }));

  std::map<std::string, std::vector<DocumentedMetric>> documented = DocumentedMetrics();
  EXPECT_GE(documented["Worker"].size(), 15u);
  EXPECT_GE(documented["Router"].size(), 6u);
  for (const auto& [section, server] :
       std::map<std::string, Server*>{{"Worker", &worker_}, {"Router", &router_}}) {
    const MetricsPage page = Scrape(*server);
    for (const DocumentedMetric& metric : documented[section]) {
      SCOPED_TRACE(metric.name);
      const double value = page.Sum(MovingSeries(metric));
      if (metric.type == "gauge" && metric.name != "ridge_router_worker_up") {
        EXPECT_EQ(value, 0) << "all is quiet again";
      } else {
        EXPECT_GT(value, 0);
      }
    }
  }
}

TEST_F(ObservabilityTest, TheDocumentedMetricsAreAllThereAre) {
  std::map<std::string, std::vector<DocumentedMetric>> documented = DocumentedMetrics();
  const auto types = [&](const std::vector<std::string>& sections) {
    std::map<std::string, std::string> types_of_names;
    for (const std::string& section : sections) {
      for (const DocumentedMetric& metric : documented[section]) types_of_names[metric.name] = metric.type;
    }
    return types_of_names;
  };
  // Those of Numerics do not move when all is well.
  EXPECT_EQ(Scrape(worker_).types(), types({"Worker", "Numerics"}));
  EXPECT_EQ(Scrape(router_).types(), types({"Router"}));
}

TEST_F(ObservabilityTest, EveryLabelValueCounts) {
  ASSERT_NO_FATAL_FAILURE(MoveGauges());
  ASSERT_NO_FATAL_FAILURE(FinishInEveryWay());
  for (const char* kind : {"prefill", "decode", "mixed"}) {
    EXPECT_GT(Scrape(worker_).Value(absl::StrCat("ridge_step_duration_seconds_count{kind=\"", kind, "\"}")),
              0)
        << kind;
  }
  for (const char* reason : {"stop", "length", "context"}) {
    EXPECT_TRUE(Eventually([&] { return Finished(reason) == 1; })) << reason;
  }
  EXPECT_EQ(Finished("error"), 0);
  EXPECT_TRUE(Eventually([&] { return Scrape(router_).Value("ridge_router_requests_in_flight") == 0; }));
  EXPECT_EQ(Ended("OK"), 3);
  EXPECT_GE(Ended("CANCELLED"), 3);
  EXPECT_EQ(Ended("INVALID_ARGUMENT"), 1);
  EXPECT_EQ(Ended("UNAVAILABLE"), 0) << router_.process->Stderr();
  EXPECT_EQ(Ended("INTERNAL"), 0);
}

TEST_F(ObservabilityTest, CountsOfTokensAreExact) {
  Client client(router_.grpc);
  ASSERT_TRUE(client.Ask(GreedyRequest(Prompt(40), 8)).status.ok());
  ASSERT_TRUE(client.Ask(GreedyRequest(Prompt(2), 1)).status.ok());
  // A stream's last message may reach the client before it is counted.
  EXPECT_TRUE(Eventually([&] { return Finished("length") == 2; }));
  const MetricsPage page = Scrape(worker_);
  EXPECT_EQ(page.Value("ridge_prompt_tokens_total"), 42);
  EXPECT_EQ(page.Value("ridge_generation_tokens_total"), 9);
  EXPECT_EQ(page.Value("ridge_time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(page.Value("ridge_inter_token_latency_seconds_count"), 7);
  EXPECT_EQ(page.Value("ridge_e2e_request_latency_seconds_count"), 2);
}

TEST_F(ObservabilityTest, HealthIsToldByService) {
  const auto serving = [&](const Server& server, const std::string& service) {
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status = CheckHealth(server, service, &response);
    EXPECT_TRUE(status.ok()) << Describe(status);
    return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  };
  for (const char* service : {"", "ridge.v1.Inference"}) {
    EXPECT_TRUE(serving(worker_, service)) << service;
    EXPECT_TRUE(serving(router_, service)) << service;
  }
  EXPECT_TRUE(serving(worker_, "ridge.v1.Worker"));
  grpc::health::v1::HealthCheckResponse response;
  EXPECT_EQ(CheckHealth(worker_, "no.such.Service", &response).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(CheckHealth(router_, "no.such.Service", &response).error_code(), grpc::StatusCode::NOT_FOUND);

  worker_.process.reset();
  EXPECT_TRUE(Eventually([&] { return !serving(router_, "ridge.v1.Inference"); }));
  EXPECT_TRUE(serving(router_, "")) << "the router itself is well";
}

TEST_F(ObservabilityTest, EveryHttpPathAnswers) {
  for (const Server* server : {&worker_, &router_}) {
    for (const char* path : {"/metrics", "/healthz", "/readyz", "/statusz"}) {
      const absl::StatusOr<HttpReply> reply = HttpGet(server->metrics, path);
      ASSERT_TRUE(reply.ok()) << path << reply.status();
      EXPECT_EQ(reply->code, 200) << path;
    }
    const absl::StatusOr<HttpReply> unknown = HttpGet(server->metrics, "/nothing");
    ASSERT_TRUE(unknown.ok()) << unknown.status();
    EXPECT_EQ(unknown->code, 404);
  }
}

TEST_F(ObservabilityTest, ReflectionListsTheServices) {
  // ServerReflectionRequest{list_services: "*"}. In the answer each name is a ServiceResponse{name} of its
  // own.
  const std::string list_services = "\x3a\x01*";
  const auto listed = [&](const Server& server, const std::string& service) {
    std::string answer;
    const grpc::Status status = Client(server.grpc)
                                    .CallRaw("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                             list_services, &answer);
    EXPECT_TRUE(status.ok()) << Describe(status);
    const std::string entry =
        absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
    return answer.find(entry) != std::string::npos;
  };
  for (const char* service : {"ridge.v1.Inference", "grpc.health.v1.Health"}) {
    EXPECT_TRUE(listed(worker_, service)) << service;
    EXPECT_TRUE(listed(router_, service)) << service;
  }
  EXPECT_TRUE(listed(worker_, "ridge.v1.Worker"));
  EXPECT_FALSE(listed(router_, "ridge.v1.Worker"));
}

}  // namespace
}  // namespace ridge::testing
