#include "bench/measure/experiment.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/workload/draw.h"
#include "common/hash.h"

namespace ridge::bench {
namespace {

std::string NowUtc() {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%S+00:00", absl::Now(), absl::UTCTimeZone());
}

std::string ShortId() {
  return RandomId().substr(0, 8);
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

std::vector<ArrivalRecord> ToArrivals(const Subject& subject, const OpenOptions& options,
                                      const Workload& workload, double rate, const OpenSummary& summary,
                                      absl::Span<const TargetResult> results) {
  std::vector<ArrivalRecord> records(results.size());
  const std::string sweep_id = ShortId();
  for (size_t i = 0; i < results.size(); ++i) {
    const WorkItem& item = workload.items[i];
    const TargetResult& result = results[i];
    ArrivalRecord& record = records[i];
    record.sweep_id = sweep_id;
    record.rate = rate;
    record.max_batch = subject.max_batch;
    record.seed = options.seed;
    record.requests = static_cast<int32_t>(results.size());
    record.unserved = summary.unserved;
    record.late = summary.late;
    record.prompt_label = item.label;
    record.prompt_tokens = item.prompt_tokens;
    record.budget = item.max_tokens;
    record.completion_tokens = static_cast<int32_t>(result.ids.size());
    record.arrival_s = item.arrival_s;
    record.start_s = result.start_s;
    record.first_token_s = result.token_s.empty() ? 0 : result.token_s.front();
    record.end_s = result.end_s;
    record.end = result.end;
  }
  return records;
}

}  // namespace

absl::StatusOr<std::vector<TargetRequest>> ToRequests(const Workload& workload, Prompts* prompts) {
  // Copies of a prompt share its ids.
  absl::flat_hash_map<int32_t, std::shared_ptr<const std::vector<int32_t>>> by_length;
  std::vector<TargetRequest> requests;
  for (const WorkItem& item : workload.items) {
    std::shared_ptr<const std::vector<int32_t>> ids;
    const bool shared = item.prefix_blocks.empty();
    if (const auto found = by_length.find(item.prompt_tokens); shared && found != by_length.end()) {
      ids = found->second;
    } else {
      absl::StatusOr<Prompt> prompt = prompts->For(item);
      if (!prompt.ok()) return prompt.status();
      ids = std::make_shared<const std::vector<int32_t>>(std::move(prompt->ids));
      if (shared) by_length[item.prompt_tokens] = ids;
    }
    requests.push_back(
        {.prompt_ids = std::move(ids), .max_tokens = item.max_tokens, .arrival_s = item.arrival_s});
  }
  return requests;
}

absl::Status RunClosed(const Subject& subject, const ClosedOptions& options) {
  const absl::Time begin = absl::Now();
  const int per_workload = options.warmups + options.runs;
  const int count = static_cast<int>(options.workloads.size()) * per_workload;
  int done = 0, skipped = 0;
  for (const Workload& workload : options.workloads) {
    absl::StatusOr<std::vector<TargetRequest>> requests = ToRequests(workload, subject.prompts);
    if (!requests.ok()) return requests.status();
    for (int run_index = -options.warmups; run_index < options.runs; ++run_index, ++done) {
      if (subject.records->HasRun(workload.name, run_index)) {
        ++skipped;
        continue;
      }
      const std::string ts_utc = NowUtc();
      absl::StatusOr<std::vector<TargetResult>> results = subject.target->Run(*requests, {});
      if (!results.ok()) return results.status();
      if (absl::Status failure = FirstFailure(*results); !failure.ok()) return failure;
      const std::vector<RunRecord> records =
          ToRecords(subject, workload, run_index, ts_utc, *requests, *std::move(results));
      if (absl::Status status = subject.records->AddRun(records); !status.ok()) return status;
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

absl::Status RunOpen(const Subject& subject, const OpenOptions& options) {
  for (const double rate : options.rates) {
    if (subject.records->HasSweep(rate)) continue;
    Workload workload = options.workload;
    SetArrivals(
        {.first_rate = rate, .last_rate = rate, .burstiness = options.burstiness, .seed = options.seed},
        &workload);
    absl::StatusOr<std::vector<TargetRequest>> requests = ToRequests(workload, subject.prompts);
    if (!requests.ok()) return requests.status();
    absl::StatusOr<std::vector<TargetResult>> results =
        subject.target->Run(*requests, {.stop_above = options.stop_above});
    if (!results.ok()) return results.status();
    const OpenSummary summary = Summarise(*requests, *results);
    *subject.progress
        << absl::StrFormat(
               "%g/s: served %.3f/s, %.1f tokens/s, TTFT p50 %.3f p99 %.3f s, queue p50 %.3f s, ITL p50 %.2f "
               "p99 %.2f ms, disturbed gaps p50 %.1f worst %.1f ms, %d over 150 ms; %d unserved, %d late",
               rate, summary.served_rate, summary.tokens_per_second, summary.ttft_s.p50, summary.ttft_s.p99,
               summary.queue_s.p50, summary.itl_s.p50 * 1e3, summary.itl_s.p99 * 1e3,
               summary.disturbance_s.p50 * 1e3, summary.disturbance_s.worst * 1e3,
               summary.disturbed_over_150_ms, summary.unserved, summary.late)
        << std::endl;
    if (summary.late > 0) {
      return absl::AbortedError(absl::StrCat(
          summary.late, " of ", results->size(), " requests were sent more than ", kLateSeconds * 1e3,
          " ms late at ", rate, "/s: the run measured its client and is not recorded"));
    }
    absl::Status status =
        subject.records->AddSweep(ToArrivals(subject, options, workload, rate, summary, *results));
    if (!status.ok()) return status;
    if (summary.served_rate < options.least_served_share * rate) break;
  }
  return absl::OkStatus();
}

}  // namespace ridge::bench
