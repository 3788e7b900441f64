// How long a card takes for a step.
//
//   launches = launches_per_layer * layers + launches_per_step
//   device   = weight bytes / weight_bytes_per_second
//            + (rows * linear FLOPs + outputs * vocabulary FLOPs) / flops_per_second
//            + prefill pairs * attention FLOPs / prefill_attention_flops
//            + the longer of decode positions * K/V bytes * transfers / attention_bytes_per_second
//              and, in one pass, the widest row's positions * a KV head's bytes / walk_bytes_per_second
//            + launches * stream_launch_us, or replay_launch_us where the step is replayed from a graph
//   host     = step_us + launches * launch_us, where it is not (step_us otherwise)
//
// Replayed are, with `replay`, steps of one row a sequence, as worker/backend/cuda does it.
//
// Every multiplication reads all weights; padded rows are rows. A prefill pair is a row and a position that
// it attends to; a decode position is a position that a decode row or a padded one reads
// (StepPlan::padded_width). Linear FLOPs are 2 a parameter of the layers, vocabulary FLOPs 2 an element of
// the output matrix, attention FLOPs 4 a query element and layer. A step's device part begins when the host
// has prepared it (step_us) and the step before is done; it ends no earlier than the host's launches.
#pragma once

#include <cstdint>

#include "worker/backend/simulated/card.h"
#include "worker/backend/step_plan.h"
#include "worker/model/model_config.h"

namespace ridge::worker {

struct StepCost {
  int64_t prepare_ns;  // the host, before the device can begin
  int64_t launch_ns;   // the host, while the device works
  int64_t device_ns;
  int64_t launches;  // of the host: all device operations, or a graph and the copies before and after it
};

// Pure.
class CostModel {
 public:
  CostModel(const SimulatedCard& card, const ModelConfig& model, bool split_attention, bool replay);

  StepCost Of(const StepPlan& plan) const;

 private:
  struct Launches {
    int64_t count;
    double host_ns;
    double device_ns;  // between kernels
  };

  const bool replay_;
  Launches stream_, replayed_;
  // Nanoseconds a unit.
  double weights_ns_, row_ns_, output_ns_, prefill_pair_ns_;
  double row_position_ns_, rectangle_position_ns_;  // decode positions
  double walk_position_ns_;                         // of the widest row
  double prepare_ns_;
};

// When the steps of one device end.
class Timeline {
 public:
  // A step that is submitted at this time; returns when it is done.
  int64_t Add(int64_t now_ns, const StepCost& cost);

 private:
  int64_t host_free_ns_ = 0;
  int64_t device_free_ns_ = 0;
};

}  // namespace ridge::worker
