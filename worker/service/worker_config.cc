#include "worker/service/worker_config.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/address.h"
#include "common/status.h"
#include "common/utf8.h"
#include "worker/backend/simulated/card.h"

namespace ridge::worker {
namespace {

constexpr int kMaxPort = 65535;
constexpr int kMaxThreads = 1024;
constexpr int kMaxBatch = 4096;
constexpr int kMaxStepTokens = 65536;
constexpr size_t kMaxNameBytes = 256;
constexpr int64_t kMinMessageBytes = int64_t{64} << 10;
constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;

absl::Status CheckRange(absl::string_view flag, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidField(flag, absl::StrCat(value, " is not in ", low, " to ", high));
}

absl::Status CheckOneOf(absl::string_view flag, const std::string& value,
                        const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return absl::OkStatus();
  return InvalidField(flag, absl::StrCat("\"", value, "\" is not one of ", absl::StrJoin(choices, ", ")));
}

absl::Status CheckModelName(const std::string& name) {
  if (name.size() > kMaxNameBytes) {
    return InvalidField("--served_model_name", absl::StrCat("longer than ", kMaxNameBytes, " bytes"));
  }
  if (!IsValidUtf8(name)) return InvalidField("--served_model_name", "not valid UTF-8");
  return absl::OkStatus();
}

absl::Status CheckMatmul(const WorkerConfig& config) {
  absl::Status status = CheckOneOf("--matmul", config.matmul, {"ridge", "cublaslt"});
  if (status.ok() && config.matmul == "cublaslt" && config.device != "cuda") {
    return InvalidField("--matmul", absl::StrCat("cublaslt needs --device cuda, not ", config.device));
  }
  return status;
}

absl::Status CheckEngine(const WorkerConfig& config) {
  absl::Status status = PolicyOf(config.policy).status();
  status.Update(CheckRange("--threads", config.threads, 0, kMaxThreads));
  status.Update(CheckRange("--kv_cache_bytes", config.kv_cache_bytes.value_or(1), 1, INT64_MAX));
  status.Update(CheckRange("--max_batch", config.max_batch, 1, kMaxBatch));
  status.Update(CheckRange("--step_tokens", config.step_tokens, 1, kMaxStepTokens));
  status.Update(CheckRange("--chunk_tokens", config.chunk_tokens, 1, kMaxStepTokens));
  status.Update(CheckRange("--max_context", config.max_context, 0, INT32_MAX));
  if (status.ok() && config.step_tokens < config.max_batch) {
    return InvalidField("--step_tokens", absl::StrCat(config.step_tokens, " is less than --max_batch ",
                                                      config.max_batch, ": each sequence needs a row"));
  }
  if (status.ok() && config.max_context == 1) {
    return InvalidField("--max_context", "1 leaves no room for a prompt and a token");
  }
  return status;
}

}  // namespace

absl::Status CheckDeviceName(const std::string& device) {
  if (absl::StartsWith(device, kSimulatedPrefix)) {
    const absl::Status card = LoadCard(absl::StripPrefix(device, kSimulatedPrefix)).status();
    return card.ok() ? card : InvalidField("--device", card.message());
  }
#if RIDGE_HAVE_CUDA
  return CheckOneOf("--device", device, {"auto", "cuda", "cpu", "simulated:CARD"});
#else
  if (device == "cuda")
    return InvalidField("--device", "cuda is not built in; there is: auto, cpu, simulated:CARD");
  return CheckOneOf("--device", device, {"auto", "cpu", "simulated:CARD"});
#endif
}

absl::Status Validate(const WorkerConfig& config) {
  if (config.model.empty()) return InvalidField("--model", "required");
  absl::Status status = CheckModelName(config.served_model_name);
  status.Update(ParseHostPort("--listen", config.listen, 0).status());
  status.Update(CheckRange("--metrics_port", config.metrics_port, -1, kMaxPort));
  status.Update(CheckDeviceName(config.device));
  status.Update(CheckMatmul(config));
  status.Update(CheckEngine(config));
  status.Update(CheckOneOf("--default_sampling", config.default_sampling, {"ridge", "model"}));
  status.Update(
      CheckRange("--max_message_bytes", config.max_message_bytes, kMinMessageBytes, kMaxMessageBytes));
  status.Update(CheckOneOf("--log_level", config.log_level, {"debug", "info", "warning", "error"}));
  if (status.ok() && config.drain_timeout < absl::ZeroDuration()) {
    return InvalidField("--drain_timeout", "must not be negative");
  }
  status.Update(CheckRange("--max_queued_requests", config.max_queued_requests, 1, INT32_MAX));
  status.Update(CheckRange("--max_queued_tokens", config.max_queued_tokens, 1, INT64_MAX));
  if (status.ok() && config.queue_timeout < absl::ZeroDuration()) {
    return InvalidField("--queue_timeout", "must not be negative");
  }
  if (status.ok() && config.stall_timeout < absl::Seconds(1)) {
    return InvalidField("--stall_timeout", "must be at least 1s");
  }
  return status;
}

std::string ToString(const WorkerConfig& config) {
  return absl::StrCat(
      "model=", config.model, " served_model_name=", config.served_model_name, " listen=", config.listen,
      " metrics_port=", config.metrics_port, " device=", config.device, " matmul=", config.matmul, " ",
      ToString(config.policy), " threads=", config.threads, " pin_threads=", config.pin_threads,
      " kv_cache_bytes=", config.kv_cache_bytes.has_value() ? absl::StrCat(*config.kv_cache_bytes) : "auto",
      " max_batch=", config.max_batch, " step_tokens=", config.step_tokens,
      " chunk_tokens=", config.chunk_tokens, " max_context=", config.max_context,
      " default_sampling=", config.default_sampling, " chat_template=", config.chat_template,
      " max_message_bytes=", config.max_message_bytes, " log_level=", config.log_level,
      " max_queued_requests=", config.max_queued_requests, " max_queued_tokens=", config.max_queued_tokens,
      " queue_timeout=", absl::FormatDuration(config.queue_timeout),
      " stall_timeout=", absl::FormatDuration(config.stall_timeout),
      " drain_timeout=", absl::FormatDuration(config.drain_timeout));
}

}  // namespace ridge::worker
