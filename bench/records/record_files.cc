#include "bench/records/record_files.h"

#include <algorithm>
#include <climits>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/records/csv.h"
#include "bench/records/gzip_file.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

namespace fs = std::filesystem;

constexpr char kRuns[] = "runs.csv.gz";
constexpr char kRunLines[] = "runs.jsonl.gz";
constexpr char kArrivals[] = "arrivals.csv.gz";
constexpr char kPassLines[] = "passes.jsonl.gz";

std::string PassKey(const std::string& rate, const std::string& last_rate, const std::string& in_flight) {
  return absl::StrCat(rate, " ", last_rate, " ", in_flight);
}

// A CSV file with a header, record by record.
class CsvFile {
 public:
  static absl::StatusOr<std::optional<CsvFile>> Open(const std::string& path, const std::string& header) {
    absl::StatusOr<std::string> text = ReadGzip(path);
    if (absl::IsNotFound(text.status())) return std::nullopt;
    if (!text.ok()) return text.status();
    CsvFile csv(path, *std::move(text));
    if (csv.text_.substr(0, header.size()) != header) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": its columns are not those of schema ", kRecordSchema));
    }
    csv.at_ = header.size();
    absl::string_view names = header;
    csv.names_ = TakeCsvRecord(&names);
    return csv;
  }

  // False at the end.
  absl::StatusOr<bool> Next(std::map<std::string, std::string>* record) {
    absl::string_view rest = absl::string_view(text_).substr(at_);
    if (rest.empty()) return false;
    const std::vector<std::string> fields = TakeCsvRecord(&rest);
    at_ = text_.size() - rest.size();
    ++line_;
    if (fields.size() != names_.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, ", record ", line_, ": ", fields.size(), " fields, not ", names_.size()));
    }
    for (size_t i = 0; i < fields.size(); ++i) (*record)[names_[i]] = fields[i];
    return true;
  }

  absl::Status Expect(const std::map<std::string, std::string>& record, const char* name,
                      const std::string& value) const {
    if (record.at(name) == value) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(path_, ", record ", line_, ": ", name, " is \"",
                                                      record.at(name), "\", this run's is \"", value, "\""));
  }

 private:
  CsvFile(std::string path, std::string text) : path_(std::move(path)), text_(std::move(text)) {}

  std::string path_;
  std::string text_;
  size_t at_ = 0;
  int line_ = 0;
  std::vector<std::string> names_;
};

using Record = std::map<std::string, std::string>;

// Calls `visit` with each record of a file, if there is one, and whether it is of this engine with these
// parameters. Refuses records of another model or device.
absl::Status ForEachRecord(const std::string& path, const std::string& header, const RunContext& context,
                           absl::FunctionRef<absl::Status(const Record& record, bool is_ours)> visit) {
  absl::StatusOr<std::optional<CsvFile>> file = CsvFile::Open(path, header);
  if (!file.ok() || !file->has_value()) return file.status();
  CsvFile& csv = **file;
  Record record;
  for (;;) {
    const absl::StatusOr<bool> more = csv.Next(&record);
    if (!more.ok() || !*more) return more.status();
    absl::Status status = csv.Expect(record, "model", context.model);
    status.Update(csv.Expect(record, "device_name", context.device_name));
    const bool is_ours =
        record.at("engine") == context.engine && record.at("engine_params") == context.engine_params;
    if (status.ok()) status = visit(record, is_ours);
    if (!status.ok()) return status;
  }
}

}  // namespace

RecordFiles::RecordFiles(std::string folder, RunContext context)
    : folder_(std::move(folder)), context_(std::move(context)) {}

absl::StatusOr<RecordFiles> RecordFiles::Open(const std::string& folder, const RunContext& context) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat(folder, ": ", error.message()));
  RecordFiles files(folder, context);
  absl::Status status = files.ReadRuns();
  if (status.ok()) status = files.ReadPasses();
  if (!status.ok()) return status;
  return files;
}

absl::Status RecordFiles::ReadRuns() {
  const std::string path = absl::StrCat(folder_, "/", kRuns);
  return ForEachRecord(path, RunCsvHeader(), context_, [&](const Record& record, bool is_ours) {
    hashes_.insert(record.at("output_sha8"));
    int run_index = 0;
    double total_s = 0;
    if (!absl::SimpleAtoi(record.at("run_index"), &run_index) ||
        !absl::SimpleAtod(record.at("total_s"), &total_s)) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": run_index or total_s is not a number"));
    }
    if (is_ours) {
      double& run_s = runs_[{record.at("workload"), run_index}];
      run_s = std::max(run_s, total_s);
    }
    return absl::OkStatus();
  });
}

absl::Status RecordFiles::ReadPasses() {
  const std::string path = absl::StrCat(folder_, "/", kArrivals);
  return ForEachRecord(path, ArrivalCsvHeader(), context_, [&](const Record& record, bool is_ours) {
    double arrival_s = 0, latency_s = 0;
    const std::string& latency = record.at("latency_s");
    if (!absl::SimpleAtod(record.at("arrival_s"), &arrival_s) ||
        (!latency.empty() && !absl::SimpleAtod(latency, &latency_s))) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": arrival_s or latency_s is not a number"));
    }
    if (is_ours) {
      passes_[PassKey(record.at("rate"), record.at("last_rate"), record.at("in_flight"))].Add(
          arrival_s, latency.empty() ? std::nullopt : std::optional(latency_s));
    }
    return absl::OkStatus();
  });
}

bool RecordFiles::HasRun(const std::string& workload, int run_index) const {
  return runs_.contains({workload, run_index});
}

double RecordFiles::SecondsOf(const std::string& workload) const {
  double seconds = 0;
  for (auto run = runs_.lower_bound({workload, INT_MIN}); run != runs_.end() && run->first.first == workload;
       ++run) {
    seconds += run->second;
  }
  return seconds;
}

bool RecordFiles::HasPass(double rate, double last_rate, int32_t in_flight) const {
  return passes_.contains(PassKey(absl::StrCat(rate), absl::StrCat(last_rate), absl::StrCat(in_flight)));
}

double RecordFiles::ServedRate(double rate, double last_rate, int32_t in_flight) const {
  const Pass& pass =
      passes_.at(PassKey(absl::StrCat(rate), absl::StrCat(last_rate), absl::StrCat(in_flight)));
  const double span_s = pass.last_end_s - pass.first_arrival_s;
  return span_s > 0 ? pass.served / span_s : 0;
}

absl::Status RecordFiles::AddRun(absl::Span<const RunRecord> records) {
  std::string lines, rows;
  for (const RunRecord& record : records) {
    lines += RunJsonLine(context_, record, hashes_.insert(OutputHash(record.ids)).second);
    rows += RunCsvLine(context_, record);
    double& run_s = runs_[{record.workload, record.run_index}];
    run_s = std::max(run_s, record.total_s);
  }
  const std::string csv = folder_ + "/" + kRuns;
  if (!fs::exists(csv)) rows = RunCsvHeader() + rows;
  absl::Status status = AppendGzip(folder_ + "/" + kRunLines, lines);
  return status.ok() ? AppendGzip(csv, rows) : status;
}

absl::Status RecordFiles::AddPass(absl::Span<const ArrivalRecord> records,
                                  const nlohmann::ordered_json& figures) {
  std::string rows;
  for (const ArrivalRecord& record : records) {
    rows += ArrivalCsvLine(context_, record);
    const std::optional<double> latency_s =
        record.completion_tokens > 0 ? std::optional(record.end_s - record.arrival_s) : std::nullopt;
    passes_[PassKey(absl::StrCat(record.rate), absl::StrCat(record.last_rate),
                    absl::StrCat(record.in_flight))]
        .Add(record.arrival_s, latency_s);
  }
  const ArrivalRecord& first = records.front();
  nlohmann::ordered_json line{{"schema", kRecordSchema},
                              {"bench_id", context_.bench_id},
                              {"sweep_id", first.sweep_id},
                              {"engine", context_.engine},
                              {"engine_params", context_.engine_params},
                              {"device_name", context_.device_name},
                              {"rate", first.rate},
                              {"last_rate", first.last_rate},
                              {"in_flight", first.in_flight},
                              {"requests", first.requests}};
  line.update(figures);
  const std::string csv = folder_ + "/" + kArrivals;
  if (!fs::exists(csv)) rows = ArrivalCsvHeader() + rows;
  absl::Status status = AppendGzip(folder_ + "/" + kPassLines, line.dump() + "\n");
  return status.ok() ? AppendGzip(csv, rows) : status;
}

void RecordFiles::Pass::Add(double arrival_s, std::optional<double> latency_s) {
  first_arrival_s = requests == 0 ? arrival_s : std::min(first_arrival_s, arrival_s);
  ++requests;
  if (!latency_s.has_value()) return;
  ++served;
  last_end_s = std::max(last_end_s, arrival_s + *latency_s);
}

}  // namespace ridge::bench
