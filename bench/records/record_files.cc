#include "bench/records/record_files.h"

#include <algorithm>
#include <climits>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/records/gzip_file.h"
#include "bench/records/record_csv.h"
#include "bench/records/settings_check.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr char kRuns[] = "runs.csv.gz";
constexpr char kRunLines[] = "runs.jsonl.gz";
constexpr char kArrivals[] = "arrivals.csv.gz";
constexpr char kPassLines[] = "passes.jsonl.gz";

std::string PassKey(const std::string& rate, const std::string& last_rate, const std::string& in_flight) {
  return absl::StrCat(rate, " ", last_rate, " ", in_flight);
}

std::string PassKey(double rate, double last_rate, int32_t in_flight) {
  return PassKey(absl::StrCat(rate), absl::StrCat(last_rate), absl::StrCat(in_flight));
}

// For messages, from the parts of a PassKey.
std::string PassName(const std::string& rate, const std::string& last_rate, const std::string& in_flight) {
  if (in_flight != "0") return absl::StrCat("the pass with ", in_flight, " in flight");
  if (rate == "0") return "the pass at its own times";
  return absl::StrCat("the pass at ", rate, last_rate == "0" ? "" : absl::StrCat(" to ", last_rate), "/s");
}

absl::Status Lacks(const std::string& path, const std::string& what, absl::string_view other) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": lacks ", what, ", which ", other, " has; restore it or take another --out"));
}

// Neither file has its part where the other one cannot be written.
absl::Status AppendBoth(const std::string& lines_path, const std::string& lines, const std::string& csv_path,
                        const std::string& rows) {
  std::error_code error;
  const uintmax_t before = fs::exists(lines_path) ? fs::file_size(lines_path, error) : 0;
  absl::Status status = AppendGzip(lines_path, lines);
  if (!status.ok()) return status;
  status = AppendGzip(csv_path, rows);
  if (status.ok()) return status;
  if (before == 0) {
    fs::remove(lines_path, error);
  } else {
    fs::resize_file(lines_path, before, error);
  }
  return status;
}

}  // namespace

RecordFiles::RecordFiles(std::string folder, RunContext context, FolderLock lock)
    : folder_(std::move(folder)), context_(std::move(context)), lock_(std::move(lock)) {}

absl::StatusOr<RecordFiles> RecordFiles::Open(const std::string& folder, const RunContext& context) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat(folder, ": ", error.message()));
  absl::StatusOr<FolderLock> lock = FolderLock::Take(folder);
  if (!lock.ok()) return lock.status();
  RecordFiles files(folder, context, *std::move(lock));
  absl::Status status = files.CutHalves();
  if (status.ok()) status = files.ReadRuns();
  if (status.ok()) status = files.CheckRunLines();
  if (status.ok()) status = files.ReadPasses();
  if (status.ok()) status = files.ReadPassLines();
  if (status.ok()) status = files.CheckPassLines();
  if (!status.ok()) return status;
  return files;
}

absl::Status RecordFiles::CutHalves() {
  for (const char* name : {kRuns, kRunLines, kArrivals, kPassLines}) {
    const std::string path = absl::StrCat(folder_, "/", name);
    const absl::StatusOr<bool> cut = CutHalfMember(path);
    if (!cut.ok()) return cut.status();
    if (*cut) absl::StrAppend(&mended_, path, ": its last record was half written and is cut off\n");
  }
  return absl::OkStatus();
}

absl::Status RecordFiles::ReadRuns() {
  const std::string path = absl::StrCat(folder_, "/", kRuns);
  return ForEachRecord(path, RunCsvHeader(), context_, [&](const CsvRecord& record, bool is_ours) {
    hashes_.insert(record.at("output_sha8"));
    int run_index = 0, new_tokens = 0;
    double total_s = 0;
    if (!absl::SimpleAtoi(record.at("run_index"), &run_index) ||
        !absl::SimpleAtoi(record.at("max_new_tokens"), &new_tokens) ||
        !absl::SimpleAtod(record.at("total_s"), &total_s)) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": run_index, max_new_tokens or total_s is not a number"));
    }
    if (is_ours) {
      double& run_s = runs_[{record.at("workload"), run_index}];
      run_s = std::max(run_s, total_s);
      run_settings_.try_emplace(
          record.at("workload"),
          Settings{ordered_json{{"new_tokens", new_tokens}}.dump(), record.at("engine_params")});
    }
    return absl::OkStatus();
  });
}

// The lines are written before the CSV, so they have at least what it has.
absl::Status RecordFiles::CheckRunLines() const {
  if (runs_.empty()) return absl::OkStatus();
  const std::string path = absl::StrCat(folder_, "/", kRunLines);
  const absl::StatusOr<std::string> text = ReadGzip(path);
  if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
  std::set<std::pair<std::string, int>> there;
  int number = 0;
  for (const absl::string_view row : absl::StrSplit(text.value_or(""), '\n', absl::SkipEmpty())) {
    ++number;
    const ordered_json line = ordered_json::parse(row, nullptr, false);
    if (!line.is_object() || !line.value("workload", ordered_json()).is_string() ||
        !line.value("run_index", ordered_json()).is_number_integer() || !line.contains("engine")) {
      return absl::FailedPreconditionError(absl::StrCat(path, ", line ", number, ": not a run"));
    }
    if (line["engine"] == context_.engine) there.emplace(line["workload"], line["run_index"]);
  }
  for (const auto& [run, seconds] : runs_) {
    if (!there.contains(run)) return Lacks(path, absl::StrCat("run ", run.second, " of ", run.first), kRuns);
  }
  return absl::OkStatus();
}

absl::Status RecordFiles::CheckPassLines() const {
  for (const auto& [key, pass] : passes_) {
    if (pass_lines_.contains(key)) continue;
    const std::vector<std::string> parts = absl::StrSplit(key, ' ');
    return Lacks(absl::StrCat(folder_, "/", kPassLines), PassName(parts[0], parts[1], parts[2]), kArrivals);
  }
  return absl::OkStatus();
}

absl::Status RecordFiles::ReadPasses() {
  const std::string path = absl::StrCat(folder_, "/", kArrivals);
  return ForEachRecord(path, ArrivalCsvHeader(), context_, [&](const CsvRecord& record, bool is_ours) {
    double arrival_s = 0, latency_s = 0;
    const std::string& latency = record.at("latency_s");
    if (!absl::SimpleAtod(record.at("arrival_s"), &arrival_s) ||
        (!latency.empty() && !absl::SimpleAtod(latency, &latency_s))) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": arrival_s or latency_s is not a number"));
    }
    if (is_ours) {
      passes_[PassKey(record.at("rate"), record.at("last_rate"), record.at("in_flight"))].Add(
          arrival_s, latency.empty() ? std::nullopt : std::optional(latency_s),
          record.at("end") == "cancelled");
    }
    return absl::OkStatus();
  });
}

absl::Status RecordFiles::ReadPassLines() {
  const std::string path = absl::StrCat(folder_, "/", kPassLines);
  const absl::StatusOr<std::string> text = ReadGzip(path);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  int number = 0;
  for (const absl::string_view row : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    ++number;
    const ordered_json line = ordered_json::parse(row, nullptr, false);
    const auto has_number = [&](const char* key) { return line.contains(key) && line[key].is_number(); };
    if (!line.is_object() || !has_number("rate") || !has_number("last_rate") || !has_number("in_flight") ||
        !has_number("requests") || !line.contains("engine")) {
      return absl::FailedPreconditionError(absl::StrCat(path, ", line ", number, ": not a pass"));
    }
    if (line["engine"] != context_.engine) continue;
    const ordered_json own = line.value("settings", ordered_json{{"requests", line["requests"]}});
    const std::string key = PassKey(line["rate"].get<double>(), line["last_rate"].get<double>(),
                                    line["in_flight"].get<int32_t>());
    // A run that was killed between the two files left a line of its own before the one that counts.
    pass_lines_.insert_or_assign(key,
                                 PassLine{{own.dump(), line.value("engine_params", "")}, std::string(row)});
  }
  return absl::OkStatus();
}

bool RecordFiles::HasRun(const std::string& workload, int run_index) const {
  return runs_.contains({workload, run_index});
}

int RecordFiles::RunsOf(const std::string& workload) const {
  return static_cast<int>(std::count_if(runs_.begin(), runs_.end(),
                                        [&](const auto& run) { return run.first.first == workload; }));
}

absl::Status RecordFiles::CheckRuns(const std::string& workload, const ordered_json& settings) const {
  const auto there = run_settings_.find(workload);
  if (there == run_settings_.end()) return absl::OkStatus();
  const std::string what = absl::StrCat(workload, " in ", folder_);
  absl::Status status = CheckWorkloadSettings(what, there->second.own, settings);
  status.Update(CheckEngineParams(what, there->second.params, context_.engine_params));
  return status;
}

absl::Status RecordFiles::CheckPass(double rate, double last_rate, int32_t in_flight,
                                    const ordered_json& settings) const {
  const auto there = pass_lines_.find(PassKey(rate, last_rate, in_flight));
  if (there == pass_lines_.end()) return absl::OkStatus();
  const std::string name = PassName(absl::StrCat(rate), absl::StrCat(last_rate), absl::StrCat(in_flight));
  const std::string what = absl::StrCat(name, " in ", folder_);
  absl::Status status = CheckWorkloadSettings(what, there->second.settings.own, settings);
  status.Update(CheckEngineParams(what, there->second.settings.params, context_.engine_params));
  return status;
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
  return passes_.contains(PassKey(rate, last_rate, in_flight));
}

double RecordFiles::ServedRate(double rate, double last_rate, int32_t in_flight) const {
  const Pass& pass = passes_.at(PassKey(rate, last_rate, in_flight));
  const double span_s = pass.last_end_s - pass.first_arrival_s;
  return span_s > 0 ? pass.served / span_s : 0;
}

double RecordFiles::ArrivedRate(double rate, double last_rate, int32_t in_flight) const {
  const Pass& pass = passes_.at(PassKey(rate, last_rate, in_flight));
  return ArrivalRate(pass.requests, pass.first_arrival_s, pass.last_arrival_s) *
         (pass.requests - pass.cancelled) / pass.requests;
}

ordered_json RecordFiles::PassFigures(double rate, double last_rate, int32_t in_flight) const {
  return ordered_json::parse(pass_lines_.at(PassKey(rate, last_rate, in_flight)).line);
}

absl::Status RecordFiles::AddRun(absl::Span<const RunRecord> records, const ordered_json& settings) {
  std::string lines, rows;
  for (const RunRecord& record : records) {
    lines += RunJsonLine(context_, record, hashes_.insert(OutputHash(record.ids)).second);
    rows += RunCsvLine(context_, record);
    double& run_s = runs_[{record.workload, record.run_index}];
    run_s = std::max(run_s, record.total_s);
    run_settings_.try_emplace(record.workload, Settings{settings.dump(), context_.engine_params});
  }
  const std::string csv = folder_ + "/" + kRuns;
  if (!fs::exists(csv)) rows = RunCsvHeader() + rows;
  return AppendBoth(folder_ + "/" + kRunLines, lines, csv, rows);
}

absl::Status RecordFiles::AddPass(absl::Span<const ArrivalRecord> records, const ordered_json& settings,
                                  const ordered_json& figures) {
  const ArrivalRecord& first = records.front();
  const std::string key = PassKey(first.rate, first.last_rate, first.in_flight);
  std::string rows;
  for (const ArrivalRecord& record : records) {
    rows += ArrivalCsvLine(context_, record);
    passes_[key].Add(record.arrival_s,
                     record.served() ? std::optional(record.end_s - record.arrival_s) : std::nullopt,
                     record.end == "cancelled");
  }
  ordered_json line{{"schema", kRecordSchema},
                    {"bench_id", context_.bench_id},
                    {"sweep_id", first.sweep_id},
                    {"engine", context_.engine},
                    {"engine_params", context_.engine_params},
                    {"device_name", context_.device_name},
                    {"rate", first.rate},
                    {"last_rate", first.last_rate},
                    {"in_flight", first.in_flight},
                    {"requests", first.requests},
                    {"settings", settings}};
  line.update(figures);
  // What a server says of its errors need not be UTF-8.
  const std::string text = line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  pass_lines_.insert_or_assign(key, PassLine{{settings.dump(), context_.engine_params}, text});
  const std::string csv = folder_ + "/" + kArrivals;
  if (!fs::exists(csv)) rows = ArrivalCsvHeader() + rows;
  return AppendBoth(folder_ + "/" + kPassLines, text + "\n", csv, rows);
}

void RecordFiles::Pass::Add(double arrival_s, std::optional<double> latency_s, bool is_cancelled) {
  first_arrival_s = requests == 0 ? arrival_s : std::min(first_arrival_s, arrival_s);
  last_arrival_s = std::max(last_arrival_s, arrival_s);
  ++requests;
  cancelled += is_cancelled;
  if (!latency_s.has_value()) return;
  ++served;
  last_end_s = std::max(last_end_s, arrival_s + *latency_s);
}

}  // namespace ridge::bench
