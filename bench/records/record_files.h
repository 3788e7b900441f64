// The files of a measurement: runs.csv.gz, runs.jsonl.gz and arrivals.csv.gz in one folder. They grow run by
// run, so that a sweep that broke off goes on where it stopped: what is complete in the files is not measured
// again.
//
// A run is written whole or not at all: its lines reach the files in one write each after the last sequence
// has ended, the CSV last. Not thread-safe.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/records/arrival_record.h"
#include "bench/records/run_record.h"

namespace ridge::bench {

class RecordFiles {
 public:
  // Opens or makes the folder and reads what it has. An error names the file, and the line where one cannot
  // be read; so it does where the records were made with another schema, model or device name than
  // `context`'s.
  static absl::StatusOr<RecordFiles> Open(const std::string& folder, const RunContext& context);

  // Whether the run is there, of this engine with these parameters.
  bool HasRun(const std::string& workload, int run_index) const;
  // A pass over a workload, by how its requests came.
  bool HasPass(double rate, double last_rate, int32_t in_flight) const;

  // The sequences of one run.
  absl::Status AddRun(absl::Span<const RunRecord> records);
  // The requests of one pass over a trace.
  absl::Status AddPass(absl::Span<const ArrivalRecord> records);

 private:
  RecordFiles(std::string folder, RunContext context);
  absl::Status ReadRuns();
  absl::Status ReadPasses();

  std::string folder_;
  RunContext context_;
  std::set<std::pair<std::string, int>> runs_;  // workload, index
  std::set<std::string> passes_;                // PassKey
  absl::flat_hash_set<std::string> hashes_;     // of the outputs whose ids are written
};

}  // namespace ridge::bench
