// The files of a measurement in one folder: runs.csv.gz, runs.jsonl.gz, arrivals.csv.gz, and passes.jsonl.gz
// with what each pass over a trace came to. They grow run by run, so that a sweep that broke off goes on
// where it stopped: what is complete in the files is not measured again.
//
// A run is written whole or not at all: its lines reach the files in one write each after the last sequence
// has ended, the CSV last. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/records/arrival_record.h"
#include "bench/records/run_record.h"
#include "nlohmann/json_fwd.hpp"

namespace ridge::bench {

class RecordFiles {
 public:
  // Opens or makes the folder and reads what it has. An error names the file, and the line where one cannot
  // be read; so it does where the records were made with another schema, model or device name than
  // `context`'s.
  static absl::StatusOr<RecordFiles> Open(const std::string& folder, const RunContext& context);

  // Whether the run is there, of this engine with these parameters.
  bool HasRun(const std::string& workload, int run_index) const;
  // What the recorded runs of a workload took together, warm-ups too.
  double SecondsOf(const std::string& workload) const;

  // A pass over a workload, by how its requests came.
  bool HasPass(double rate, double last_rate, int32_t in_flight) const;
  // Served requests a second of a pass that is there, from the first arrival to the last one's end.
  double ServedRate(double rate, double last_rate, int32_t in_flight) const;

  // The sequences of one run.
  absl::Status AddRun(absl::Span<const RunRecord> records);
  // The requests of one pass over a trace, and its figures by name.
  absl::Status AddPass(absl::Span<const ArrivalRecord> records, const nlohmann::ordered_json& figures);

 private:
  RecordFiles(std::string folder, RunContext context);
  absl::Status ReadRuns();
  absl::Status ReadPasses();

  std::string folder_;
  RunContext context_;
  // Of a pass; times as in ArrivalRecord.
  struct Pass {
    double first_arrival_s = 0, last_end_s = 0;
    int32_t requests = 0, served = 0;
    void Add(double arrival_s, std::optional<double> latency_s);
  };

  std::map<std::pair<std::string, int>, double> runs_;  // workload, index: seconds
  std::map<std::string, Pass> passes_;                  // by PassKey
  absl::flat_hash_set<std::string> hashes_;             // of the outputs whose ids are written
};

}  // namespace ridge::bench
