// ridge-bench draw: freezes a workload, and the prompts behind it, for engines and peers to replay.
#pragma once

#include "absl/status/status.h"

namespace ridge::bench {

// Reads the flags. Writes the workload to --out, and, where --model is given, OUT.prompts.json: ids and text
// of each of its prompts by label.
absl::Status Draw();

}  // namespace ridge::bench
