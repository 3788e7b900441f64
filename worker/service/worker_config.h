// Configuration of ridge-worker.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/decision/engine_policy.h"

namespace ridge::worker {

// What begins the name of a device that is simulated.
inline constexpr char kSimulatedPrefix[] = "simulated:";

struct WorkerConfig {
  std::string model;                       // GGUF file, Hugging Face directory or synthetic:NAME; required
  std::string served_model_name;           // what clients call it, at most 256 bytes; empty: its file's name
  std::string listen = "127.0.0.1:50051";  // host:port of the gRPC port; port 0: any free one
  int metrics_port = 9101;                 // on the host of `listen`; 0: any free one, -1: none; up to 65,535
  std::string device = "auto";             // auto, cuda, cpu, simulated:CARD
  std::string matmul = "ridge";            // ridge, or cublaslt: the library's, on cuda alone
  PolicyNames policy;                      // an engine preset and what replaces its choices
  int threads = 0;                         // compute threads, up to 1,024; 0: one a core
  bool pin_threads = false;                // each compute thread stays on a core of its own
  std::optional<int64_t> kv_cache_bytes;   // at least one block of 16 tokens; none: Backend::DefaultBlocks
  int max_batch = 64;                      // sequences that run at once; 1 to 4,096
  int step_tokens = 512;                   // most rows of one step; max_batch to 65,536
  int chunk_tokens = 512;                  // most prompt rows of one sequence in a step; 1 to 65,536
  int max_context = 0;                     // tokens of prompt and completion; 0: as the model has it
  std::string default_sampling = "ridge";  // ridge, or model: its generation_config.json
  std::string chat_template;               // family by name; empty: the model's own
  int64_t max_message_bytes = int64_t{16} << 20;        // of one gRPC message; 64 KiB to 1 GiB
  std::string log_level = "info";                       // debug, info, warning, error
  int max_queued_requests = 4096;                       // that wait; >= 1
  int64_t max_queued_tokens = int64_t{16} << 20;        // of prompts that wait; >= 1
  absl::Duration queue_timeout = absl::ZeroDuration();  // before a request's first step; 0: none
  absl::Duration stall_timeout = absl::Seconds(120);    // without progress until not ready; >= 1 s
  absl::Duration drain_timeout = absl::Seconds(30);     // how long open streams may go on after SIGTERM; >= 0
};

// Whether --device names a device: one of this build, or a simulated card that there is.
absl::Status CheckDeviceName(const std::string& device);

// The first value out of its range, by its flag.
absl::Status Validate(const WorkerConfig& config);

// One line of name=value, for the log and /statusz.
std::string ToString(const WorkerConfig& config);

}  // namespace ridge::worker
