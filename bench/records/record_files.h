// The files of a measurement in one folder: runs.csv.gz, runs.jsonl.gz, arrivals.csv.gz, and passes.jsonl.gz
// with what each pass over a trace came to. They grow run by run, so that a sweep that broke off goes on
// where it stopped: what is complete in the files is not measured again.
//
// A run is written whole or not at all: its lines reach the files in one write each after the last sequence
// has ended, the CSV last. The folder is locked as long as the object lives. Not thread-safe.
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
#include "bench/records/folder_lock.h"
#include "bench/records/run_record.h"
#include "nlohmann/json_fwd.hpp"

namespace ridge::bench {

class RecordFiles {
 public:
  // Opens or makes the folder, locks it and reads what it has. An error names the file, and the line where
  // one cannot be read or a file lacks what the other one has of a run; so it does where the records were
  // made with another schema than `context`'s, and the flag where it is another model or device.
  static absl::StatusOr<RecordFiles> Open(const std::string& folder, const RunContext& context);

  // A line for each file whose last record was half written, as by a process that was killed: it is cut off,
  // and measured again. Empty where there was none.
  const std::string& mended() const { return mended_; }

  // Whether the run is there, of this engine.
  bool HasRun(const std::string& workload, int run_index) const;
  // How many runs of a workload are there, warm-ups too.
  int RunsOf(const std::string& workload) const;
  // Runs of one workload are counted together, so all were made with the same settings: FAILED_PRECONDITION
  // names the flag and both values where the engine's parameters or `settings` (a JSON object by flag, what
  // the workload itself depends on) are not those of the runs that are there.
  absl::Status CheckRuns(const std::string& workload, const nlohmann::ordered_json& settings) const;
  // What the recorded runs of a workload took together, warm-ups too.
  double SecondsOf(const std::string& workload) const;

  // A pass over a workload, by how its requests came.
  bool HasPass(double rate, double last_rate, int32_t in_flight) const;
  // Served requests a second of a pass that is there, from the first arrival to the last one's end.
  double ServedRate(double rate, double last_rate, int32_t in_flight) const;
  // What came a second in a pass that is there, as ArrivalRate has it, but for the clients that left.
  double ArrivedRate(double rate, double last_rate, int32_t in_flight) const;
  // The line of a pass that is there, with its figures by name as AddPass was given them.
  nlohmann::ordered_json PassFigures(double rate, double last_rate, int32_t in_flight) const;
  // As CheckRuns, of a pass that is there.
  absl::Status CheckPass(double rate, double last_rate, int32_t in_flight,
                         const nlohmann::ordered_json& settings) const;

  // The sequences of one run, and its settings by flag.
  absl::Status AddRun(absl::Span<const RunRecord> records, const nlohmann::ordered_json& settings);
  // The requests of one pass over a trace, its settings by flag, and its figures by name.
  absl::Status AddPass(absl::Span<const ArrivalRecord> records, const nlohmann::ordered_json& settings,
                       const nlohmann::ordered_json& figures);

 private:
  RecordFiles(std::string folder, RunContext context, FolderLock lock);
  absl::Status CutHalves();
  absl::Status ReadRuns();
  absl::Status CheckRunLines() const;
  absl::Status ReadPasses();
  absl::Status ReadPassLines();
  absl::Status CheckPassLines() const;

  std::string folder_;
  RunContext context_;
  FolderLock lock_;
  std::string mended_;
  // Of a pass; times as in ArrivalRecord.
  struct Pass {
    double first_arrival_s = 0, last_arrival_s = 0, last_end_s = 0;
    int32_t requests = 0, served = 0, cancelled = 0;
    void Add(double arrival_s, std::optional<double> latency_s, bool is_cancelled);
  };

  std::map<std::pair<std::string, int>, double> runs_;  // workload, index: seconds
  std::map<std::string, Pass> passes_;                  // by PassKey
  // What something was measured with: JSON objects by flag.
  struct Settings {
    std::string own;     // of the workload or the pass
    std::string params;  // of the engine
  };
  // Of passes.jsonl.
  struct PassLine {
    Settings settings;
    std::string line;
  };
  std::map<std::string, Settings> run_settings_;  // by workload
  std::map<std::string, PassLine> pass_lines_;    // by PassKey
  absl::flat_hash_set<std::string> hashes_;       // of the outputs whose ids are written
};

}  // namespace ridge::bench
