// Whether records on disk were made with the settings of the run that would go on with them. Pure.
//
// Settings are JSON objects by flag, as text. `what` names the records in an error: "p16-x1 in DIR".
#pragma once

#include <string>

#include "absl/status/status.h"
#include "bench/records/run_record.h"
#include "nlohmann/json_fwd.hpp"

namespace ridge::bench {

// Of a workload or a pass. FAILED_PRECONDITION names the flag and both values; what `there`, of an older
// version, does not have is not compared.
absl::Status CheckWorkloadSettings(const std::string& what, const std::string& there,
                                   const nlohmann::ordered_json& here);

// Of an engine: every parameter counts, but for the size of a pool that follows from the memory that was
// free.
absl::Status CheckEngineParams(const std::string& what, const std::string& there, const std::string& here);

// What a record says of the machine it was made on.
struct RecordedOn {
  std::string model, device, device_name, engine_params;
};
// FAILED_PRECONDITION names the flag that makes the difference where a record in `path` is of another model
// or device than `context`'s.
absl::Status CheckSubject(const std::string& path, const RecordedOn& there, const RunContext& context);

}  // namespace ridge::bench
