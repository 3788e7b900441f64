#include "bench/measure/closed_runs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/measure/summary.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

std::string NowUtc() {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%S+00:00", absl::Now(), absl::UTCTimeZone());
}

absl::Status FirstFailure(absl::Span<const TargetResult> results) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].served()) {
      return absl::AbortedError(
          absl::StrCat("request ", i, " ended with ", results[i].end, ": ", results[i].error));
    }
  }
  return absl::OkStatus();
}

std::vector<RunRecord> ToRecords(const Subject& subject, const Workload& workload, int run_index,
                                 const std::string& ts_utc, const std::vector<TargetRequest>& requests,
                                 std::vector<TargetResult> results) {
  std::vector<RunRecord> records(results.size());
  const std::string batch_id = ShortId();
  const int64_t peak_bytes = subject.peak_memory ? subject.peak_memory() : 0;
  const std::string work = subject.work ? subject.work() : "";
  for (size_t i = 0; i < results.size(); ++i) {
    const WorkItem& item = workload.items[i];
    RunRecord& record = records[i];
    record.run_index = run_index;
    record.ts_utc = ts_utc;
    record.workload = workload.name;
    record.prompt_label = item.label;
    record.prompt_tokens = item.prompt_tokens;
    record.max_new_tokens = item.max_tokens;
    record.batch_size = static_cast<int32_t>(results.size());
    record.batch_id = batch_id;
    record.sequence_index = static_cast<int32_t>(i);
    record.temperature = requests[i].temperature;
    record.seed = requests[i].seed;
    record.stopped_reason = results[i].end;
    record.token_s = std::move(results[i].token_s);
    record.ids = std::move(results[i].ids);
    record.text = std::move(results[i].text);
    record.total_s = results[i].end_s;
    record.peak_mem_bytes = peak_bytes;
    record.peak_mem_source = subject.peak_memory_source;
    record.notes = work;
  }
  return records;
}

// One line of a run: its median sequence and the batch as a whole.
std::string RunLine(const Workload& workload, int run_index, const std::vector<RunRecord>& records) {
  std::vector<double> ttft_ms, itl_ms;
  double total_s = 0;
  int64_t tokens = 0;
  for (const RunRecord& record : records) {
    const RunFigures figures = FiguresOf(record);
    ttft_ms.push_back(figures.ttft_s * 1e3);
    itl_ms.push_back(figures.itl_p50_ms);
    total_s = std::max(total_s, record.total_s);
    tokens += static_cast<int64_t>(record.ids.size());
  }
  return absl::StrFormat("%s, run %d: TTFT %.2f ms, ITL p50 %.3f ms, %.1f tokens/s in %.2f s", workload.name,
                         run_index, SpreadOf(ttft_ms).p50, SpreadOf(itl_ms).p50,
                         static_cast<double>(tokens) / total_s, total_s);
}

nlohmann::ordered_json SettingsOf(const Workload& workload) {
  return {{"new_tokens", workload.items.front().max_tokens}};
}

// Whether a run that is not recorded yet is to be made.
bool IsDue(const RecordFiles& records, const ClosedOptions& options, const Workload& workload,
           int run_index) {
  const auto size = static_cast<int32_t>(workload.items.size());
  if (run_index < 0 && options.largest_warmed > 0 && size > options.largest_warmed) return false;
  if (options.most_seconds == 0 || run_index == -options.warmups || run_index == 0) return true;
  const double share = run_index < 0 ? 0.25 : 1;
  return records.SecondsOf(workload.name) < share * options.most_seconds;
}

}  // namespace

absl::Status RunClosed(const Subject& subject, const ClosedOptions& options) {
  const absl::Time begin = absl::Now();
  const int per_workload = options.warmups + options.runs;
  const int count = static_cast<int>(options.workloads.size()) * per_workload;
  int done = 0, skipped = 0;
  for (const Workload& workload : options.workloads) {
    const absl::Status status = subject.records->CheckRuns(workload.name, SettingsOf(workload));
    if (!status.ok()) return status;
  }
  for (const Workload& workload : options.workloads) {
    if (const int there = subject.records->RunsOf(workload.name); there > 0) {
      *subject.progress << workload.name << ": " << there << " runs are on record and are not made again"
                        << std::endl;
    }
    absl::StatusOr<std::vector<TargetRequest>> requests = ToRequests(workload, subject.prompts);
    if (!requests.ok()) return requests.status();
    for (int run_index = -options.warmups; run_index < options.runs; ++run_index, ++done) {
      if (subject.records->HasRun(workload.name, run_index) ||
          !IsDue(*subject.records, options, workload, run_index)) {
        ++skipped;
        continue;
      }
      const std::string ts_utc = NowUtc();
      absl::StatusOr<std::vector<TargetResult>> results = subject.target->Run(*requests, {});
      if (!results.ok()) return results.status();
      if (absl::Status failure = FirstFailure(*results); !failure.ok()) return failure;
      const std::vector<RunRecord> records =
          ToRecords(subject, workload, run_index, ts_utc, *requests, *std::move(results));
      if (absl::Status status = subject.records->AddRun(records, SettingsOf(workload)); !status.ok())
        return status;
      const int measured = done + 1 - skipped;
      const absl::Duration left = (absl::Now() - begin) / measured * (count - done - 1);
      *subject.progress << absl::StrFormat("[%d/%d, about %s left] %s", done + 1, count,
                                           absl::FormatDuration(absl::Trunc(left, absl::Seconds(1))),
                                           RunLine(workload, run_index, records))
                        << std::endl;
    }
  }
  return absl::OkStatus();
}

}  // namespace ridge::bench
