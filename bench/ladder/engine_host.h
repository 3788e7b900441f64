// A model and an engine in this process, ready to be measured.
//
// Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "bench/ladder/backend_probe.h"
#include "bench/measure/engine_target.h"
#include "bench/records/run_record.h"
#include "bench/workload/prompts.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "worker/decision/engine_policy.h"
#include "worker/model/weight_source.h"
#include "worker/service/served_model.h"

namespace ridge::bench {

struct HostConfig {
  std::string model;            // as ridge-worker's --model
  std::string device = "auto";  // as ridge-worker's --device
  int threads = 0;
  std::optional<int64_t> kv_cache_bytes;  // at least one block; none: Backend::DefaultBlocks
  int32_t max_batch = 32;
  int32_t step_tokens = 0;  // 0: as chunks, or whole prompts, and the batch need
  int32_t chunk_tokens = 512;
  // Tokens of prompt and completion: what contiguous memory is cut by. 0: as the model has it.
  int32_t max_context = 0;
  bool virtual_clock = true;  // of simulated devices: no time passes
};

// A model that was opened: what engines on it share.
class OpenedModel {
 public:
  static absl::StatusOr<std::unique_ptr<OpenedModel>> Open(const HostConfig& config);

  const worker::WeightSource& source() const { return *source_; }
  const worker::ServedModel& served() const { return served_; }
  // Prompts from the beginning of a text, or made up where the model has no tokenizer.
  Prompts MakePrompts(std::string source_text) const;

 private:
  std::unique_ptr<worker::WeightSource> source_;
  worker::ServedModel served_;
};

class EngineHost {
 public:
  // Loads the weights onto the device. `model` outlives this. Errors name the flag.
  static absl::StatusOr<std::unique_ptr<EngineHost>> Open(const HostConfig& config,
                                                          const worker::PolicyNames& policy,
                                                          const OpenedModel& model);

  EngineTarget* target() { return target_.get(); }
  // The backend by hand, where the target is not used.
  BackendProbe Probe() { return BackendProbe(backend_.get(), clock_, step_tokens_); }
  const worker::BackendInfo& info() const { return backend_->Info(); }
  int32_t num_blocks() const { return num_blocks_; }
  int32_t step_tokens() const { return step_tokens_; }
  double load_s() const { return load_s_; }
  // Whether no time passes while it runs.
  bool is_virtual() const { return clock_ == &virtual_clock_; }
  // Weights and the K/V blocks that were held at most since the last call.
  int64_t TakePeakBytes();
  // What the engine did since the last call: "steps 256, rows 4351, padded_rows 0, kv_positions 1081216,
  // launches 36864".
  std::string TakeWork();

 private:
  absl::Status CreateBackend(const HostConfig& config, const worker::PolicyNames& names,
                             const OpenedModel& model);
  absl::Status Reserve(const HostConfig& config, const worker::EnginePolicy& policy,
                       const OpenedModel& model);

  FakeClock virtual_clock_;
  Clock* clock_ = RealClock();
  std::function<void(int64_t)> wait_until_;
  MetricsRegistry registry_;
  std::unique_ptr<worker::Backend> backend_;
  int32_t num_blocks_ = 0;
  int32_t step_tokens_ = 0;
  double load_s_ = 0;
  worker::EngineTotals told_;
  std::unique_ptr<EngineTarget> target_;
};

}  // namespace ridge::bench
