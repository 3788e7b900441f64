// ridge-bench roofline: the arithmetic of a model on a card as pages, and what was measured beside it.
#pragma once

#include "absl/status/status.h"

namespace ridge::bench {

// Reads the flags; writes hardware.md and model.html into --out.
absl::Status Roofline();

}  // namespace ridge::bench
