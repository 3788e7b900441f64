// The choices that make an engine, each independent of the others, and the presets that name combinations of
// them: the ladder from an engine without a KV cache to this one (docs/architecture.md has the table).
//
// A preset really does the work that its idea costs: what it pads is computed. All give the same tokens.
// Plain data and pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridge::worker {

enum class MemoryPolicy {
  kScratch,     // nothing is kept: every step computes the whole sequence
  kContiguous,  // consecutive blocks up to the sequence's limit
  kPadded,      // consecutive blocks up to the longest prompt and output of the batch; a rectangle
  kSlots,       // consecutive blocks for a whole context, whatever the sequence needs; a rectangle
  kReserved,    // any blocks, up to the sequence's limit
  kOnDemand,    // any blocks, when they are reached; preemption where there are none
};

enum class AdmissionPolicy {
  kOne,         // one sequence at a time, from its first token to its last
  kBatch,       // as many as there are slots, and nobody else until the last of them has finished
  kContinuous,  // whenever there is a slot and memory
};

enum class PrefillPolicy {
  kWhole,    // prompts in one piece (cut only by step_tokens)
  kPadded,   // the same, those that are admitted together padded to the longest
  kChunked,  // in chunks, packed
};

enum class StepPolicy {
  kSeparate,  // a step has prompts or decode rows: whole prompts go first, chunks take turns with decode
              // steps
  kFused,     // both in one forward pass
};

// The device's.
enum class AttentionPolicy {
  kOnePass,  // a decode row's attention reads its K and V in one pass
  kSplit,    // split over them
};

enum class LaunchPolicy {
  kStream,  // kernel by kernel, and the next step only after this one's tokens were read
  kGraph,   // replayed from graphs, one step ahead
};

struct EnginePolicy {
  MemoryPolicy memory = MemoryPolicy::kOnDemand;
  AdmissionPolicy admission = AdmissionPolicy::kContinuous;
  PrefillPolicy prefill = PrefillPolicy::kChunked;
  StepPolicy step = StepPolicy::kFused;
  AttentionPolicy attention = AttentionPolicy::kSplit;
  LaunchPolicy launch = LaunchPolicy::kGraph;
  bool prefix_cache = true;
};

// From naive to ridge.
const std::vector<std::string>& PresetNames();

// One of PresetNames().
EnginePolicy PresetPolicy(absl::string_view name);

// A preset with some choices replaced, each by its name; an empty name keeps the preset's.
struct PolicyNames {
  std::string engine = "ridge";
  std::string memory = "";            // scratch, contiguous, padded, slots, reserved, on_demand
  std::string admission = "";         // one, batch, continuous
  std::string prefill = "";           // whole, padded, chunked
  std::string step = "";              // separate, fused
  std::string decode_attention = "";  // one_pass, split
  std::string launch = "";            // stream, graph
  std::string prefix_cache = "";      // off, on
};

// name=value for each that is not empty.
std::string ToString(const PolicyNames& names);

// INVALID_ARGUMENT "--FLAG: ..." for a name that is none, and for choices that do not go together.
absl::StatusOr<EnginePolicy> PolicyOf(const PolicyNames& names);

}  // namespace ridge::worker
