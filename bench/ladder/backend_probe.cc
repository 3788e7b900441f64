#include "bench/ladder/backend_probe.h"

#include <algorithm>

#include "bench/records/latency.h"
#include "bench/workload/prompts.h"
#include "worker/memory/block_pool.h"

namespace ridge::bench {
namespace {

using worker::StepPlan;

double Seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace

StepPlan BackendProbe::Attach(int64_t tokens) {
  StepPlan plan;
  if (attached_) plan.releases.push_back(0);
  attached_ = true;
  worker::SlotAttach attach{};
  attach.sampling.temperature = 0;
  plan.attaches.push_back(attach);
  for (int32_t block = 0; block < worker::BlocksForTokens(tokens); ++block)
    plan.appends.push_back({0, block});
  return plan;
}

absl::Status BackendProbe::Prefill(absl::Span<const worker::TokenId> tokens) {
  const auto count = static_cast<int32_t>(tokens.size());
  StepPlan plan = Attach(count);
  for (int32_t begin = 0; begin < count; begin += step_rows_) {
    const int32_t rows = std::min(step_rows_, count - begin);
    plan.tokens.assign(tokens.begin() + begin, tokens.begin() + begin + rows);
    plan.segments = {{.slot = 0,
                      .first_position = begin,
                      .num_rows = rows,
                      .first_row_from_slot = false,
                      .token_offset = 0,
                      .num_outputs = 0}};
    const absl::Status status = backend_->Collect(backend_->Submit(plan)).status();
    if (!status.ok()) return status;
    plan = StepPlan();
  }
  return absl::OkStatus();
}

StepPlan BackendProbe::LastToken(absl::Span<const worker::TokenId> tokens) const {
  StepPlan plan;
  plan.tokens = {tokens.back()};
  plan.segments = {{.slot = 0,
                    .first_position = static_cast<int32_t>(tokens.size()) - 1,
                    .num_rows = 1,
                    .first_row_from_slot = false,
                    .token_offset = 0,
                    .num_outputs = 1}};
  return plan;
}

absl::StatusOr<std::vector<float>> BackendProbe::LogitsAfter(absl::Span<const worker::TokenId> tokens) {
  if (absl::Status status = Prefill(tokens); !status.ok()) return status;
  StepPlan plan = LastToken(tokens);
  plan.return_logits = true;
  absl::StatusOr<worker::StepResult> result = backend_->Collect(backend_->Submit(plan));
  if (!result.ok()) return result.status();
  return std::move(result->logits);
}

absl::StatusOr<PassCost> BackendProbe::MeasurePass(int32_t context, int warmups, int repetitions) {
  std::vector<worker::TokenId> tokens;
  AppendMadeUpIds(0, context, backend_->Info().vocab_size, &tokens);
  if (absl::Status status = Prefill(tokens); !status.ok()) return status;
  const StepPlan plan = LastToken(tokens);

  std::vector<double> serialized, host;
  int64_t launches = 0;
  for (int i = -warmups; i < repetitions; ++i) {
    const int64_t begin_ns = clock_->NowNs();
    const worker::StepTicket ticket = backend_->Submit(plan);
    const int64_t submitted_ns = clock_->NowNs();
    const absl::StatusOr<worker::StepResult> result = backend_->Collect(ticket);
    if (!result.ok()) return result.status();
    if (i < 0) continue;
    launches = result->launches;
    serialized.push_back(Seconds(clock_->NowNs() - begin_ns));
    host.push_back(Seconds(submitted_ns - begin_ns));
  }

  std::vector<double> pipelined;
  worker::StepTicket ahead = backend_->Submit(plan);
  int64_t collected_ns = clock_->NowNs();
  for (int i = -warmups; i < repetitions; ++i) {
    const worker::StepTicket next = backend_->Submit(plan);
    if (absl::Status status = backend_->Collect(ahead).status(); !status.ok()) return status;
    ahead = next;
    const int64_t now_ns = clock_->NowNs();
    if (i >= 0) pipelined.push_back(Seconds(now_ns - collected_ns));
    collected_ns = now_ns;
  }
  if (absl::Status status = backend_->Collect(ahead).status(); !status.ok()) return status;
  return PassCost{context, Percentile(serialized, 50), Percentile(pipelined, 50), Percentile(host, 50),
                  launches};
}

}  // namespace ridge::bench
