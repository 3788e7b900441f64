// The device that --device names, with the model loaded on it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/metrics.h"
#include "worker/backend/backend.h"
#include "worker/model/weight_source.h"
#include "worker/service/worker_config.h"

namespace ridge::worker {

// "cuda": the first card; an error says why there is none that can serve. "cpu". "auto": a card where there
// is one, else the CPU. "simulated:CARD": no device, its pace alone. Registers the device's metrics. Errors name
// the flag.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const WorkerConfig& config, const WeightSource& source,
                                                       MetricsRegistry* registry);

}  // namespace ridge::worker
