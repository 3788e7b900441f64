// The command line of ridge-worker. A target of its own: other programs that run engines have flags of the
// same names.
#pragma once

#include "absl/status/statusor.h"
#include "worker/service/worker_config.h"

namespace ridge::worker {

// Checked; an error names the flag.
absl::StatusOr<WorkerConfig> WorkerConfigFromFlags();

}  // namespace ridge::worker
