// runs.csv.gz and arrivals.csv.gz, read record by record.
#pragma once

#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "bench/records/run_record.h"

namespace ridge::bench {

using CsvRecord = std::map<std::string, std::string>;  // by column

// Calls `visit` with each record of a file, if there is one, and whether it is of `context`'s engine. Errors
// name the file, and the record where there is one: other columns than `header`'s, a record with fields too
// many or too few, one of another model or device (CheckSubject).
absl::Status ForEachRecord(const std::string& path, const std::string& header, const RunContext& context,
                           absl::FunctionRef<absl::Status(const CsvRecord& record, bool is_ours)> visit);

}  // namespace ridge::bench
