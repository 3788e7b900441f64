#include "bench/records/record_files.h"

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

namespace ridge::bench {
namespace {

namespace fs = std::filesystem;

constexpr char kRuns[] = "runs.csv.gz";
constexpr char kRunLines[] = "runs.jsonl.gz";
constexpr char kArrivals[] = "arrivals.csv.gz";

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
    if (!absl::SimpleAtoi(record.at("run_index"), &run_index)) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": run_index is not a number"));
    }
    if (is_ours) runs_.emplace(record.at("workload"), run_index);
    return absl::OkStatus();
  });
}

absl::Status RecordFiles::ReadPasses() {
  const std::string path = absl::StrCat(folder_, "/", kArrivals);
  return ForEachRecord(path, ArrivalCsvHeader(), context_, [&](const Record& record, bool is_ours) {
    if (is_ours) passes_.insert(PassKey(record.at("rate"), record.at("last_rate"), record.at("in_flight")));
    return absl::OkStatus();
  });
}

bool RecordFiles::HasRun(const std::string& workload, int run_index) const {
  return runs_.contains({workload, run_index});
}

bool RecordFiles::HasPass(double rate, double last_rate, int32_t in_flight) const {
  return passes_.contains(PassKey(absl::StrCat(rate), absl::StrCat(last_rate), absl::StrCat(in_flight)));
}

absl::Status RecordFiles::AddRun(absl::Span<const RunRecord> records) {
  std::string lines, rows;
  for (const RunRecord& record : records) {
    lines += RunJsonLine(context_, record, hashes_.insert(OutputHash(record.ids)).second);
    rows += RunCsvLine(context_, record);
    runs_.emplace(record.workload, record.run_index);
  }
  const std::string csv = folder_ + "/" + kRuns;
  if (!fs::exists(csv)) rows = RunCsvHeader() + rows;
  absl::Status status = AppendGzip(folder_ + "/" + kRunLines, lines);
  return status.ok() ? AppendGzip(csv, rows) : status;
}

absl::Status RecordFiles::AddPass(absl::Span<const ArrivalRecord> records) {
  std::string rows;
  for (const ArrivalRecord& record : records) {
    rows += ArrivalCsvLine(context_, record);
    passes_.insert(
        PassKey(absl::StrCat(record.rate), absl::StrCat(record.last_rate), absl::StrCat(record.in_flight)));
  }
  const std::string csv = folder_ + "/" + kArrivals;
  if (!fs::exists(csv)) rows = ArrivalCsvHeader() + rows;
  return AppendGzip(csv, rows);
}

}  // namespace ridge::bench
