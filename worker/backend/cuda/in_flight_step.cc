#include "worker/backend/cuda/in_flight_step.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/cuda/sampling.h"

namespace ridge::worker {
namespace {

namespace cuda = kernels::cuda;

// How long Wait polls before it sleeps.
constexpr std::chrono::microseconds kSpin{20};
// How often WaitFor looks.
constexpr std::chrono::microseconds kPoll{200};

// In place of the first result, which is small, until it arrives.
constexpr uint64_t kUnfinished = ~uint64_t{0};

int64_t TopBytes(int64_t outputs) {
  return outputs * kMaxTopLogprobs * static_cast<int64_t>(sizeof(cuda::TopLogprob));
}

absl::Status Grow(int64_t bytes, const char* what, PinnedMemory* memory) {
  if (memory->bytes() >= bytes) return absl::OkStatus();
  absl::StatusOr<PinnedMemory> larger = PinnedMemory::Allocate(bytes, what);
  if (!larger.ok()) return larger.status();
  *memory = *std::move(larger);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<InFlightStep>> InFlightStep::Create(int64_t upload_bytes, int64_t result_bytes,
                                                                   int64_t max_outputs,
                                                                   int64_t control_bytes) {
  auto step = std::make_unique<InFlightStep>();
  absl::Status status = Grow(upload_bytes, "step upload", &step->upload);
  status.Update(Grow(result_bytes, "step results", &step->results));
  status.Update(Grow(TopBytes(max_outputs), "step results", &step->top));
  status.Update(Grow(control_bytes, "sampling controls", &step->controls));
  absl::StatusOr<CudaEvent> done = CudaEvent::Create();
  status.Update(done.status());
  if (!status.ok()) return status;
  step->done = *std::move(done);
  return step;
}

absl::Status InFlightStep::Prepare(int64_t vocab_size) {
  std::memcpy(results.as<char>(), &kUnfinished, sizeof(kUnfinished));
  return has_logits ? Grow(int64_t{4} * num_outputs * vocab_size, "logits", &logits) : absl::OkStatus();
}

bool InFlightStep::has_top() const {
  return std::any_of(num_top.begin(), num_top.end(), [](int32_t n) { return n > 0; });
}

int64_t InFlightStep::top_bytes() const {
  return TopBytes(static_cast<int64_t>(num_top.size()));
}

cudaError_t InFlightStep::Wait() const {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  cudaError_t error;
  while ((error = cudaEventQuery(done.get())) == cudaErrorNotReady &&
         std::chrono::steady_clock::now() < until) {
  }
  return error == cudaErrorNotReady ? cudaEventSynchronize(done.get()) : error;
}

void InFlightStep::WaitFor(std::chrono::nanoseconds most) const {
  const auto until = std::chrono::steady_clock::now() + most;
  while (cudaEventQuery(done.get()) == cudaErrorNotReady) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= until) return;
    std::this_thread::sleep_until(std::min(until, now + kPoll));
  }
}

bool InFlightStep::HasFinished() const {
  uint64_t first;
  std::memcpy(&first, results.as<char>(), sizeof(first));
  return first != kUnfinished;
}

absl::Status InFlightStep::Error(absl::string_view what) const {
  const std::string of = graph != nullptr ? absl::StrFormat(", a graph of %d", graph->rows) : "";
  return absl::InternalError(absl::StrFormat("step %d (%d rows%s): %s", ticket, num_rows, of, what));
}

std::string InFlightStep::Kernels() const {
  std::vector<const char*> names = launches;
  if (graph != nullptr) names.insert(names.end(), graph->launches.begin(), graph->launches.end());
  std::vector<std::pair<absl::string_view, int>> by_name;
  for (absl::string_view name : names) {
    const auto count =
        std::find_if(by_name.begin(), by_name.end(), [&](const auto& each) { return each.first == name; });
    if (count == by_name.end()) {
      by_name.emplace_back(name, 1);
    } else {
      ++count->second;
    }
  }
  return absl::StrJoin(by_name, ", ", [](std::string* out, const auto& count) {
    if (count.second > 1) absl::StrAppend(out, count.second, " x ");
    absl::StrAppend(out, count.first);
  });
}

StepResult InFlightStep::TakeResult(int64_t vocab_size) {
  StepResult result = std::move(counts);
  const int32_t* tokens = reinterpret_cast<const int32_t*>(results.as<char>() + 8);
  const float* logprobs = reinterpret_cast<const float*>(tokens + padded_outputs);
  result.outputs.resize(static_cast<size_t>(num_outputs));
  for (size_t i = 0; i < result.outputs.size(); ++i)
    result.outputs[i] = {tokens[i], greedy ? 0.0f : logprobs[i]};
  for (size_t i = 0; i < num_top.size(); ++i) {
    result.outputs[i].num_top = num_top[i];
    const auto* from = top.as<cuda::TopLogprob>() + i * kMaxTopLogprobs;
    for (int32_t rank = 0; rank < num_top[i]; ++rank)
      result.top.push_back({from[rank].id, from[rank].logprob});
  }
  if (has_logits)
    result.logits.assign(logits.as<float>(), logits.as<float>() + int64_t{num_outputs} * vocab_size);
  return result;
}

int64_t InFlightStep::saturations() const {
  uint64_t count;
  std::memcpy(&count, results.as<char>(), sizeof(count));
  return static_cast<int64_t>(count);
}

}  // namespace ridge::worker
