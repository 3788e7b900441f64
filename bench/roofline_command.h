// ridge-bench roofline: the arithmetic of a model on a card as pages, and what was measured beside it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/roofline/hardware_page.h"

namespace ridge::bench {

// Reads the flags; writes hardware.md and model.html into --out.
absl::Status Roofline();

// Of a runs.csv, compressed or not: medians over the recorded runs of each engine and workload; warm-ups and
// mixed batches are left out. Errors name the flag and the file, also where it is of another model, or of a
// device that is not the card.
absl::StatusOr<std::vector<Measured>> MeasuredRuns(const std::string& path, const std::string& model,
                                                   const std::string& card);

}  // namespace ridge::bench
