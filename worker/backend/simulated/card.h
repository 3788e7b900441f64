// What the simulated backend knows of a card: the constants of its cost model (cost_model.h), read from a
// small text file.
//
// A file has one `key value` a line, `#` begins a comment, and every key stands exactly once; `device` takes
// the rest of its line, the others a number that is not negative. The files in cards/ are built in and go by
// their names.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridge::worker {

struct SimulatedCard {
  std::string device;       // for people: "NVIDIA A10"
  double memory_bytes = 0;  // of the device
  // Rates; 0 is infinitely fast.
  double weight_bytes_per_second = 0;     // reading the weights, once a step
  double flops_per_second = 0;            // matrix multiplications
  double prefill_attention_flops = 0;     // a second, in attention of prompts' rows
  double attention_bytes_per_second = 0;  // K and V moved by decode rows' attention
  // How often that moves each byte of K and V: in one pass, in a rectangle (StepPlan::padded_width), split.
  double one_pass_transfers = 0;
  double rectangle_transfers = 0;
  double split_transfers = 0;
  double walk_bytes_per_second = 0;  // in one pass: of one row and KV head, whose keys one block walks
  // Times.
  double step_us = 0;             // of a step, beside everything else, on the host
  double launches_per_layer = 0;  // device operations of a layer
  double launches_per_step = 0;   // and of all the rest
  double launch_us = 0;           // the host's, for each launch on a stream; the device works meanwhile
  double stream_launch_us = 0;    // the device's, for each of them: what lies between two kernels
  double replay_launch_us = 0;    // the same in a replayed graph
};

// INVALID_ARGUMENT "ORIGIN: line N: KEY: what is wrong".
absl::StatusOr<SimulatedCard> ParseCard(absl::string_view text, absl::string_view origin);

// A card that is built in, or the file at a path (with a slash in it). NOT_FOUND lists the names.
absl::StatusOr<SimulatedCard> LoadCard(absl::string_view name_or_path);

}  // namespace ridge::worker
