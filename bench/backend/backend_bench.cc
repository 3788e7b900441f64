// backend-bench: steps of the CPU backend, timed in its own process, without engine or network.
//
// Commands come on stdin, one a line, so that a script can take turns with another program; each is answered
// by one line of JSON on stdout.
//
//   probe
//     bytes a second at which the threads read as much memory as the weights take
//   prefill TOKENS
//     one sequence's prompt in steps of at most 512 rows
//   decode BATCH CONTEXT STEPS
//     as many sequences of that many tokens generate STEPS tokens each; the median step
//   decode_at POSITION CONTEXT STEPS
//     one sequence of CONTEXT tokens generates from an earlier position on, so that different lengths are
//     compared without a new prefill
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "bench/kernels/probes.h"
#include "common/check.h"
#include "common/flags.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cpu/page_memory.h"
#include "worker/model/open_model.h"

ABSL_FLAG(std::string, model, "", "as ridge-worker takes it");
ABSL_FLAG(int, threads, 2, "compute threads");
ABSL_FLAG(int, kv_tokens, 8192, "tokens of KV memory");

namespace ridge::bench {
namespace {

using Clock = std::chrono::steady_clock;
using worker::StepPlan;

constexpr int32_t kPrefillRows = 512;
constexpr int32_t kMaxBatch = 64;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Bench {
 public:
  Bench(std::unique_ptr<worker::CpuBackend> backend, int threads, int32_t num_blocks)
      : backend_(std::move(backend)), threads_(threads), num_blocks_(num_blocks) {}

  std::string Probe() {
    if (probe_memory_.size_bytes() == 0) {
      probe_memory_ = worker::PageMemory::Allocate(backend_->Info().weight_bytes).value();
      std::memset(probe_memory_.as<char>(), 1, static_cast<size_t>(probe_memory_.size_bytes()));
    }
    kernels::cpu::ThreadPool pool(threads_);
    const double rate = ReadBandwidth(&pool, probe_memory_.as<char>(), probe_memory_.size_bytes());
    return absl::StrFormat(R"({"bytes": %d, "bytes_per_second": %.4g})", probe_memory_.size_bytes(), rate);
  }

  std::string Prefill(int32_t tokens) {
    ReleaseAll();
    Attach(0, tokens);
    const auto start = Clock::now();
    Fill(0, tokens);
    const double seconds = SecondsSince(start);
    return absl::StrFormat(R"({"seconds": %.6g, "tokens_per_second": %.6g})", seconds, tokens / seconds);
  }

  std::string Decode(int32_t batch, int32_t position, int32_t context, int32_t steps) {
    RIDGE_CHECK(batch >= 1 && batch <= kMaxBatch && position >= 1 && position <= context && steps >= 1);
    // The same again goes back to where it began: blocks are written anew.
    if (slots_ != batch || context_ != context || steps_ != steps) {
      ReleaseAll();
      for (int32_t slot = 0; slot < batch; ++slot) {
        Attach(slot, context + steps + 1);
        Fill(slot, context);
      }
      context_ = context;
      steps_ = steps;
    }
    SubmitDecode(batch, position);  // warms what the prefill has thrown out
    Collect();
    // One step ahead, as the engine does it.
    std::vector<double> seconds;
    auto before = Clock::now();
    SubmitDecode(batch, position);
    for (int32_t step = 1; step <= steps; ++step) {
      if (step < steps) SubmitDecode(batch, position + step);
      Collect();
      const auto now = Clock::now();
      seconds.push_back(std::chrono::duration<double>(now - before).count());
      before = now;
    }
    std::nth_element(seconds.begin(), seconds.begin() + steps / 2, seconds.end());
    const double median = seconds[static_cast<size_t>(steps / 2)];
    return absl::StrFormat(R"({"step_seconds": %.6g, "tokens_per_second": %.6g})", median, batch / median);
  }

 private:
  void Collect() { RIDGE_CHECK(backend_->Collect(collected_++).ok()); }

  void RunPlan(const StepPlan& plan) {
    backend_->Submit(plan);
    Collect();
  }

  void ReleaseAll() {
    StepPlan plan;
    for (int32_t slot = 0; slot < slots_; ++slot) plan.releases.push_back(slot);
    RunPlan(plan);
    slots_ = context_ = steps_ = next_block_ = 0;
  }

  void Attach(int32_t slot, int32_t tokens) {
    StepPlan plan;
    plan.attaches = {{slot, {.temperature = 0.0f}}};
    for (int32_t begin = 0; begin < tokens; begin += worker::kBlockTokens) {
      RIDGE_CHECK(next_block_ < num_blocks_);  // --kv_tokens
      plan.appends.push_back({slot, next_block_++});
    }
    RunPlan(plan);
    ++slots_;
  }

  void Fill(int32_t slot, int32_t tokens) {
    for (int32_t begin = 0; begin < tokens; begin += kPrefillRows) {
      const int32_t rows = std::min(kPrefillRows, tokens - begin);
      StepPlan plan;
      for (int32_t i = 0; i < rows; ++i) {
        const uint32_t mixed = static_cast<uint32_t>(slot * 100003 + begin + i) * 2654435761u;
        plan.tokens.push_back(
            static_cast<int32_t>(mixed % static_cast<uint32_t>(backend_->Info().vocab_size)));
      }
      plan.segments = {{slot, begin, rows, false, 0, begin + rows == tokens ? 1 : 0}};
      RunPlan(plan);
    }
  }

  void SubmitDecode(int32_t batch, int32_t position) {
    StepPlan plan;
    for (int32_t slot = 0; slot < batch; ++slot) plan.segments.push_back({slot, position, 1, true, 0, 1});
    backend_->Submit(plan);
  }

  std::unique_ptr<worker::CpuBackend> backend_;
  const int threads_;
  const int32_t num_blocks_;
  worker::PageMemory probe_memory_;
  int32_t slots_ = 0, context_ = 0, steps_ = 0, next_block_ = 0;
  worker::StepTicket collected_ = 0;
};

absl::Status Run() {
  auto source = worker::OpenModel(absl::GetFlag(FLAGS_model));
  if (!source.ok()) return source.status();
  const int threads = absl::GetFlag(FLAGS_threads);
  if (threads < 1) return absl::InvalidArgumentError("--threads must be positive");
  auto backend = worker::CpuBackend::Create(**source, {.threads = threads});
  if (!backend.ok()) return backend.status();
  const int32_t num_blocks = absl::GetFlag(FLAGS_kv_tokens) / worker::kBlockTokens + kMaxBatch;
  const worker::BackendLimits limits = {.max_slots = kMaxBatch, .max_step_rows = kPrefillRows};
  if (absl::Status status = (*backend)->Reserve(num_blocks, limits); !status.ok()) return status;
  std::cout << absl::StrFormat(R"({"device": "%s", "weight_bytes": %d, "kv_bytes_per_token": %d})",
                               (*backend)->Info().device, (*backend)->Info().weight_bytes,
                               (*backend)->Info().kv_block_bytes / worker::kBlockTokens)
            << std::endl;
  Bench bench(*std::move(backend), threads, num_blocks);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int32_t a = 0, b = 0, c = 0;
    words >> command >> a >> b >> c;
    if (command == "probe") {
      std::cout << bench.Probe() << std::endl;
    } else if (command == "prefill") {
      std::cout << bench.Prefill(a) << std::endl;
    } else if (command == "decode") {
      std::cout << bench.Decode(a, b, b, c) << std::endl;
    } else if (command == "decode_at") {
      std::cout << bench.Decode(1, a, b, c) << std::endl;
    } else {
      return absl::InvalidArgumentError("unknown command: " + line);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace ridge::bench

int main(int argc, char** argv) {
  ridge::ParseFlags(
      "Times steps of the CPU backend; commands on stdin: probe, prefill N, decode BATCH CONTEXT STEPS.",
      argc, argv);
  const absl::Status status = ridge::bench::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "backend-bench: %s\n", status.ToString().c_str());
  return 1;
}
