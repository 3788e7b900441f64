// ridge-bench overhead and parity.
#pragma once

#include <ostream>

#include "absl/status/status.h"
#include "bench/ladder/ladder_config.h"

namespace ridge::bench {

// What a pass over one token costs at contexts of 1, 256 and 4,096 tokens, and what of it is the host's: a
// table to `out`.
absl::Status Overhead(const LadderConfig& config, std::ostream& out);

// Compares two folders of records (--a, --b) token for token. Says where outputs part, and, where --model is
// given, how far apart its logits for the two tokens are there. FAILED_PRECONDITION where any differ.
absl::Status Parity(std::ostream& out);

}  // namespace ridge::bench
