#include "worker/service/worker_config.h"

#include <functional>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/service/worker_flags.h"

ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(std::string, kv_cache_bytes);
ABSL_DECLARE_FLAG(int, max_batch);

namespace ridge::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

WorkerConfig Valid() {
  WorkerConfig config;
  config.model = "model.gguf";
  return config;
}

TEST(WorkerConfigTest, DefaultsWithAModelAreValid) {
  EXPECT_TRUE(Validate(Valid()).ok());
}

TEST(WorkerConfigTest, ABadValueNamesItsFlag) {
  struct BadValue {
    const char* flag;
    std::function<void(WorkerConfig*)> spoil;
  };
  const BadValue bad_values[] = {
    {"--model: ", [](WorkerConfig* c) { c->model.clear(); }},
    {"--served_model_name: ", [](WorkerConfig* c) { c->served_model_name = std::string(257, 'a'); }},
    {"--served_model_name: ", [](WorkerConfig* c) { c->served_model_name = std::string("\xff"); }},
    {"--listen: ", [](WorkerConfig* c) { c->listen = std::string("50051"); }},
    {"--listen: ", [](WorkerConfig* c) { c->listen = std::string(":50051"); }},
    {"--listen: ", [](WorkerConfig* c) { c->listen = std::string("127.0.0.1:65536"); }},
    {"--metrics_port: ", [](WorkerConfig* c) { c->metrics_port = -2; }},
    {"--device: ", [](WorkerConfig* c) { c->device = std::string("tpu"); }},
    {"--device: no card \"a11\"; there is: a10",
     [](WorkerConfig* c) { c->device = std::string("simulated:a11"); }},
#if !RIDGE_HAVE_CUDA
    {"--device: cuda is not built in", [](WorkerConfig* c) { c->device = std::string("cuda"); }},
#endif
    {"--matmul: \"cutlass\" is not one of ridge, cublaslt",
     [](WorkerConfig* c) { c->matmul = std::string("cutlass"); }},
    {"--matmul: cublaslt needs --device cuda, not auto",
     [](WorkerConfig* c) { c->matmul = std::string("cublaslt"); }},
    {"--engine: \"naif\" is not one of naive, cached,",
     [](WorkerConfig* c) { c->policy.engine = std::string("naif"); }},
    {"--memory: \"all\"", [](WorkerConfig* c) { c->policy.memory = std::string("all"); }},
    {"--memory: padded needs", [](WorkerConfig* c) { c->policy.memory = std::string("padded"); }},
    {"--prefix_cache: on needs", [](WorkerConfig* c) { c->policy.memory = std::string("scratch"); }},
    {"--launch: \"\\\"", [](WorkerConfig* c) { c->policy.launch = std::string("\\"); }},
    {"--threads: ", [](WorkerConfig* c) { c->threads = -1; }},
    {"--kv_cache_bytes: ", [](WorkerConfig* c) { c->kv_cache_bytes = 0; }},
    {"--max_batch: ", [](WorkerConfig* c) { c->max_batch = 0; }},
    {"--step_tokens: ", [](WorkerConfig* c) { c->step_tokens = c->max_batch - 1; }},
    {"--step_tokens: ", [](WorkerConfig* c) { c->step_tokens = 65537; }},
    {"--chunk_tokens: ", [](WorkerConfig* c) { c->chunk_tokens = 0; }},
    {"--max_context: ", [](WorkerConfig* c) { c->max_context = -1; }},
    {"--max_context: ", [](WorkerConfig* c) { c->max_context = 1; }},
    {"--default_sampling: ", [](WorkerConfig* c) { c->default_sampling = std::string("greedy"); }},
    {"--max_message_bytes: ", [](WorkerConfig* c) { c->max_message_bytes = 1000; }},
    {"--log_level: ", [](WorkerConfig* c) { c->log_level = std::string("loud"); }},
    {"--max_queued_requests: ", [](WorkerConfig* c) { c->max_queued_requests = 0; }},
      {"--max_queued_tokens: ", [](WorkerConfig* c) { c->max_queued_tokens = 0; }},
      {"--queue_timeout: ", [](WorkerConfig* c) { c->queue_timeout = absl::Seconds(-1); }},
      {"--stall_timeout: ", [](WorkerConfig* c) { c->stall_timeout = absl::Milliseconds(10); }},
      {"--drain_timeout: ", [](WorkerConfig* c) { c->drain_timeout = absl::Seconds(-1); }},
  };
  for (const BadValue& bad : bad_values) {
    WorkerConfig config = Valid();
    bad.spoil(&config);
    const absl::Status status = Validate(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.flag;
    EXPECT_THAT(std::string(status.message()), StartsWith(bad.flag));
  }
}

TEST(WorkerConfigTest, FlagsFillTheConfig) {
  absl::FlagSaver saver;
  absl::SetFlag(&FLAGS_model, "m.gguf");
  absl::SetFlag(&FLAGS_kv_cache_bytes, "2MiB");
  absl::SetFlag(&FLAGS_max_batch, 3);
  const absl::StatusOr<WorkerConfig> config = WorkerConfigFromFlags();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model, "m.gguf");
  EXPECT_EQ(config->kv_cache_bytes, 2097152);
  EXPECT_EQ(config->max_batch, 3);
  EXPECT_EQ(config->max_message_bytes, 16777216);
  EXPECT_THAT(ToString(*config), HasSubstr("max_batch=3"));
}

TEST(WorkerConfigTest, KvMemoryIsTheDevicesDefaultUnlessSaid) {
  absl::FlagSaver saver;
  absl::SetFlag(&FLAGS_model, "m.gguf");
  const absl::StatusOr<WorkerConfig> config = WorkerConfigFromFlags();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->kv_cache_bytes.has_value());
  EXPECT_THAT(ToString(*config), HasSubstr("kv_cache_bytes=auto"));
}

TEST(WorkerConfigTest, ASizeThatIsNoneNamesItsFlag) {
  absl::FlagSaver saver;
  absl::SetFlag(&FLAGS_model, "m.gguf");
  absl::SetFlag(&FLAGS_kv_cache_bytes, "lots");
  EXPECT_THAT(std::string(WorkerConfigFromFlags().status().message()), StartsWith("--kv_cache_bytes: "));
}

}  // namespace
}  // namespace ridge::worker
