#include "worker/backend/simulated/cost_model.h"

#include <algorithm>
#include <cmath>

namespace ridge::worker {
namespace {

constexpr double kNsPerUs = 1e3;

// The host's for a replayed step: a copy of what is new, the graph, a copy of what came of it.
constexpr int64_t kReplayedOperations = 3;

double NsPerUnit(double units, double units_per_second) {
  return units_per_second == 0 ? 0 : units / units_per_second * 1e9;
}

}  // namespace

CostModel::CostModel(const SimulatedCard& card, const ModelConfig& model, bool split_attention, bool replay)
    : replay_(replay) {
  const double output = double{1} * model.vocab_size * model.hidden_size;
  const double embeddings = model.tied_embedding ? output : 2 * output;
  const double linear = static_cast<double>(model.num_parameters()) - embeddings;
  const double launches = card.launches_per_layer * model.num_layers + card.launches_per_step;
  stream_ = {std::llround(launches), launches * card.launch_us * kNsPerUs,
             launches * card.stream_launch_us * kNsPerUs};
  replayed_ = {kReplayedOperations, 0, launches * card.replay_launch_us * kNsPerUs};
  weights_ns_ = NsPerUnit(2 * (linear + output), card.weight_bytes_per_second);
  row_ns_ = NsPerUnit(2 * linear, card.flops_per_second);
  output_ns_ = NsPerUnit(2 * output, card.flops_per_second);
  prefill_pair_ns_ = NsPerUnit(4.0 * model.q_size() * model.num_layers, card.prefill_attention_flops);
  const double transfer_ns =
      NsPerUnit(static_cast<double>(model.kv_bytes_per_token()), card.attention_bytes_per_second);
  row_position_ns_ = transfer_ns * (split_attention ? card.split_transfers : card.one_pass_transfers);
  rectangle_position_ns_ = transfer_ns * card.rectangle_transfers;
  walk_position_ns_ = split_attention
                          ? 0
                          : NsPerUnit(static_cast<double>(model.kv_bytes_per_token()) / model.num_kv_heads,
                                      card.walk_bytes_per_second);
  prepare_ns_ = card.step_us * kNsPerUs;
}

StepCost CostModel::Of(const StepPlan& plan) const {
  StepResult total;
  CountRows(plan, &total);
  int64_t outputs = 0;
  int64_t prefill_pairs = 0;
  int32_t widest = 0;  // decode row
  bool one_row_each = true;
  for (const Segment& segment : plan.segments) {
    outputs += segment.num_outputs;
    const int64_t rows = segment.num_rows;
    one_row_each &= rows == 1;
    if (IsDecode(segment)) {
      widest = std::max({widest, plan.padded_width, segment.first_position + segment.num_rows});
    } else {
      prefill_pairs += rows * segment.first_position + rows * (rows + 1) / 2;
    }
  }
  const auto decode_positions = static_cast<double>(total.kv_positions - prefill_pairs);
  const double decode_attention =
      std::max(decode_positions * (plan.padded_width > 0 ? rectangle_position_ns_ : row_position_ns_),
               widest * walk_position_ns_);
  const Launches& launches = replay_ && one_row_each ? replayed_ : stream_;
  const double device =
      weights_ns_ + static_cast<double>(total.rows) * row_ns_ + static_cast<double>(outputs) * output_ns_ +
      static_cast<double>(prefill_pairs) * prefill_pair_ns_ + decode_attention + launches.device_ns;
  return {static_cast<int64_t>(prepare_ns_), static_cast<int64_t>(launches.host_ns),
          static_cast<int64_t>(device), launches.count};
}

int64_t Timeline::Add(int64_t now_ns, const StepCost& cost) {
  const int64_t prepared_ns = std::max(now_ns, host_free_ns_) + cost.prepare_ns;
  host_free_ns_ = prepared_ns + cost.launch_ns;
  device_free_ns_ = std::max(std::max(prepared_ns, device_free_ns_) + cost.device_ns, host_free_ns_);
  return device_free_ns_;
}

}  // namespace ridge::worker
