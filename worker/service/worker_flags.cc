#include "worker/service/worker_flags.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/flags.h"
#include "worker/text/chat_template.h"

using ridge::worker::WorkerConfig;

ABSL_FLAG(std::string, model, "",
          "GGUF file, Hugging Face directory or synthetic:NAME (an unknown NAME lists them); required");
ABSL_FLAG(std::string, served_model_name, "", "what clients call the model; empty: its file's name");
ABSL_FLAG(std::string, listen, WorkerConfig().listen,
          "host:port of the gRPC port; port 0 takes any free one");
ABSL_FLAG(int, metrics_port, WorkerConfig().metrics_port,
          "port of /metrics, /healthz, /readyz, /statusz; 0: any free one, -1: none");
ABSL_FLAG(
    std::string, device, WorkerConfig().device,
    "cuda, cpu, or auto: a CUDA card where there is one, else the CPU; simulated:CARD: made-up tokens at "
    "that card's pace (an unknown CARD lists them)");
ABSL_FLAG(
    std::string, matmul, WorkerConfig().matmul,
    "matrix products on cuda: ridge, or cublaslt: NVIDIA's library, whose results depend on batch mates");
ABSL_FLAG(
    std::string, engine, WorkerConfig().policy.engine,
    "engine preset: naive, cached, batched, continuous, paged, chunked, fused, flash or ridge; the flags "
    "that follow replace one of its choices each");
ABSL_FLAG(std::string, memory, "", "KV memory: scratch, contiguous, padded, slots, reserved or on_demand");
ABSL_FLAG(std::string, admission, "", "one, batch or continuous");
ABSL_FLAG(std::string, prefill, "", "prompts: whole, padded or chunked");
ABSL_FLAG(std::string, step, "", "prompts and decode rows: separate or fused");
ABSL_FLAG(std::string, decode_attention, "",
          "one_pass or split: whether threads or blocks share a decode row's keys");
ABSL_FLAG(std::string, launch, "", "stream, or graph (replayed, one step ahead)");
ABSL_FLAG(int, threads, WorkerConfig().threads, "compute threads; 0: one a core");
ABSL_FLAG(bool, pin_threads, WorkerConfig().pin_threads,
          "keep each compute thread on a core of its own; not where several workers share the cores");
ABSL_FLAG(
    std::string, kv_cache_bytes, "auto",
    "most KV memory; no more is taken than max_batch x context needs, four times that with a prefix cache; "
    "auto: what a card has left, 1GiB elsewhere");
ABSL_FLAG(int, max_batch, WorkerConfig().max_batch, "sequences that run at once");
ABSL_FLAG(int, step_tokens, WorkerConfig().step_tokens, "most rows of one step; at least max_batch");
ABSL_FLAG(int, chunk_tokens, WorkerConfig().chunk_tokens, "most prompt rows of one sequence in a step");
ABSL_FLAG(std::string, prefix_cache, "", "reuse the KV memory of prompts with the same beginning: on or off");
ABSL_FLAG(int, max_context, WorkerConfig().max_context,
          "most tokens of prompt and completion together; 0: as the model has it");
ABSL_FLAG(std::string, default_sampling, WorkerConfig().default_sampling,
          "what absent sampling fields stand for: ridge (temperature 1, the rest off) or model (its "
          "generation_config.json)");
ABSL_FLAG(std::string, chat_template, "",
          absl::StrCat("chat template by name (", ridge::worker::ChatTemplate::Names(),
                       "); empty: the model's own"));
ABSL_FLAG(std::string, max_message_bytes, "16MiB", "largest gRPC message");
ABSL_FLAG(std::string, log_level, WorkerConfig().log_level, "debug, info, warning or error");
ABSL_FLAG(int, max_queued_requests, WorkerConfig().max_queued_requests,
          "requests that may wait, each choice counted; more are refused with RESOURCE_EXHAUSTED");
ABSL_FLAG(int64_t, max_queued_tokens, WorkerConfig().max_queued_tokens,
          "prompt tokens that may wait together; one request always may");
ABSL_FLAG(absl::Duration, queue_timeout, WorkerConfig().queue_timeout,
          "how long a request may wait before its first step; 0: as long as its deadline allows");
ABSL_FLAG(absl::Duration, stall_timeout, WorkerConfig().stall_timeout,
          "not ready where there is work and no step has ended for this long");
ABSL_FLAG(absl::Duration, drain_timeout, WorkerConfig().drain_timeout,
          "how long open streams may go on after SIGTERM");

namespace ridge::worker {

absl::StatusOr<WorkerConfig> WorkerConfigFromFlags() {
  WorkerConfig config;
  config.model = absl::GetFlag(FLAGS_model);
  config.served_model_name = absl::GetFlag(FLAGS_served_model_name);
  config.listen = absl::GetFlag(FLAGS_listen);
  config.metrics_port = absl::GetFlag(FLAGS_metrics_port);
  config.device = absl::GetFlag(FLAGS_device);
  config.matmul = absl::GetFlag(FLAGS_matmul);
  config.policy = {.engine = absl::GetFlag(FLAGS_engine),
                   .memory = absl::GetFlag(FLAGS_memory),
                   .admission = absl::GetFlag(FLAGS_admission),
                   .prefill = absl::GetFlag(FLAGS_prefill),
                   .step = absl::GetFlag(FLAGS_step),
                   .decode_attention = absl::GetFlag(FLAGS_decode_attention),
                   .launch = absl::GetFlag(FLAGS_launch),
                   .prefix_cache = absl::GetFlag(FLAGS_prefix_cache)};
  config.threads = absl::GetFlag(FLAGS_threads);
  config.pin_threads = absl::GetFlag(FLAGS_pin_threads);
  config.max_batch = absl::GetFlag(FLAGS_max_batch);
  config.step_tokens = absl::GetFlag(FLAGS_step_tokens);
  config.chunk_tokens = absl::GetFlag(FLAGS_chunk_tokens);
  config.max_context = absl::GetFlag(FLAGS_max_context);
  config.default_sampling = absl::GetFlag(FLAGS_default_sampling);
  config.chat_template = absl::GetFlag(FLAGS_chat_template);
  config.log_level = absl::GetFlag(FLAGS_log_level);
  config.max_queued_requests = absl::GetFlag(FLAGS_max_queued_requests);
  config.max_queued_tokens = absl::GetFlag(FLAGS_max_queued_tokens);
  config.queue_timeout = absl::GetFlag(FLAGS_queue_timeout);
  config.stall_timeout = absl::GetFlag(FLAGS_stall_timeout);
  config.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  if (const std::string text = absl::GetFlag(FLAGS_kv_cache_bytes); text != "auto") {
    absl::StatusOr<int64_t> kv_bytes = ParseBytes("kv_cache_bytes", text);
    if (!kv_bytes.ok()) return kv_bytes.status();
    config.kv_cache_bytes = *kv_bytes;
  }
  absl::StatusOr<int64_t> message_bytes =
      ParseBytes("max_message_bytes", absl::GetFlag(FLAGS_max_message_bytes));
  if (!message_bytes.ok()) return message_bytes.status();
  config.max_message_bytes = *message_bytes;
  if (absl::Status status = Validate(config); !status.ok()) return status;
  return config;
}

}  // namespace ridge::worker
