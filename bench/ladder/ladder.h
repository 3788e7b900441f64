// ridge-bench closed and arrivals: the ladder's experiments on engines in this process.
#pragma once

#include <ostream>

#include "absl/status/status.h"
#include "bench/ladder/ladder_config.h"
#include "bench/measure/pass_flags.h"

namespace ridge::bench {

// Each engine in turn; a line a run goes to `progress`.
absl::Status Closed(LadderConfig config, const ClosedFlags& flags, std::ostream& progress);
absl::Status ArrivalSweep(LadderConfig config, const PassFlags& flags, std::ostream& progress);

}  // namespace ridge::bench
