#include "bench/measure/experiment.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/workload/draw.h"
#include "bench/workload/python_random.h"
#include "common/hash.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

// A search ends where the rate that was missed is no more than this times the one that was met.
constexpr double kGoodputPrecision = 1.05;
// And where this part of the first rate is missed.
constexpr double kLeastOfFirstRate = 32;

// A pass that measured its client is made again so often in all: one moment of a busy machine ends no sweep.
constexpr int kMostTries = 3;

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

// Lets the clients of some requests leave, each after a number of tokens of its own.
void CancelSome(const PassOptions& options, std::vector<TargetRequest>& requests) {
  if (options.cancelled_share == 0) return;
  PythonRandom random(options.seed);
  for (TargetRequest& request : requests) {
    if (random.Uniform() >= options.cancelled_share) continue;
    request.cancel_after_tokens = 1 + static_cast<int32_t>(random.Below(request.max_tokens));
  }
}

// How a pass's requests come.
std::string Offered(const PassOptions& options) {
  if (options.in_flight > 0) return absl::StrFormat("%d in flight", options.in_flight);
  if (options.rate == 0) return "at its own times";
  if (options.last_rate > 0) return absl::StrFormat("%g to %g/s", options.rate, options.last_rate);
  return absl::StrFormat("%g/s", options.rate);
}

// Empty where at least `least_share` of what came a second was served.
std::string MissedShare(double served_rate, double arrived_rate, double least_share) {
  if (served_rate >= least_share * arrived_rate) return "";
  return absl::StrFormat("served %.3f/s are %.1f %% of the %.3f/s that came, less than %g %%", served_rate,
                         100 * served_rate / arrived_rate, arrived_rate, 100 * least_share);
}

std::string PassLine(const PassOptions& options, const OpenSummary& summary) {
  std::string line = absl::StrFormat(
      "%s: served %.3f/s, %.1f tokens/s, TTFT p50 %.3f p99 %.3f s, queue p50 %.3f s, ITL p50 %.2f p99 %.2f "
      "ms, disturbed gaps "
      "p50 %.1f worst %.1f ms, %d over 150 ms; %d cancelled, %d unserved, %d late",
      Offered(options), summary.served_rate, summary.tokens_per_second, summary.ttft_s.p50,
      summary.ttft_s.p99, summary.queue_s.p50, summary.itl_s.p50 * 1e3, summary.itl_s.p99 * 1e3,
      summary.disturbance_s.p50 * 1e3, summary.disturbance_s.worst * 1e3, summary.disturbed_over_150_ms,
      summary.cancelled, summary.unserved, summary.late);
  if (summary.unserved > 0) absl::StrAppend(&line, "; unserved: ", FailureText(summary));
  if (summary.shared_message_tokens > 0) {
    absl::StrAppend(&line, "; ", summary.shared_message_tokens,
                    " of the gaps are 0: tokens in the message of the one before");
  }
  return line;
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

std::vector<ArrivalRecord> ToArrivals(const Subject& subject, const PassOptions& options,
                                      const Workload& workload, const OpenSummary& summary,
                                      absl::Span<const TargetResult> results) {
  std::vector<ArrivalRecord> records(results.size());
  const std::string sweep_id = ShortId();
  for (size_t i = 0; i < results.size(); ++i) {
    const WorkItem& item = workload.items[i];
    const TargetResult& result = results[i];
    ArrivalRecord& record = records[i];
    record.sweep_id = sweep_id;
    record.rate = options.rate;
    record.last_rate = options.last_rate;
    record.in_flight = options.in_flight;
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

// What a pass depends on beside its rate and the engine, by flag.
nlohmann::ordered_json SettingsOf(const PassOptions& options) {
  return {{"requests", options.workload.items.size()},  {"draw_seed", options.seed},
          {"workload", options.workload.origin},        {"burstiness", options.burstiness},
          {"cancelled_share", options.cancelled_share}, {"stop_above", options.stop_above}};
}

nlohmann::ordered_json SettingsOf(const Workload& workload) {
  return {{"new_tokens", workload.items.front().max_tokens}};
}

// A pass as it went.
struct MeasuredPass {
  Workload workload;  // with the times at which requests came
  std::vector<TargetResult> results;
  OpenSummary summary;
};

absl::StatusOr<MeasuredPass> MeasurePass(const Subject& subject, const PassOptions& options) {
  MeasuredPass pass{options.workload, {}, {}};
  std::vector<WorkItem>& items = pass.workload.items;
  if (options.rate > 0) {
    const double last_rate = options.last_rate > 0 ? options.last_rate : options.rate;
    SetArrivals({options.rate, last_rate, options.burstiness, options.seed}, &pass.workload);
  }
  if (options.in_flight > 0) {
    for (WorkItem& item : items) item.arrival_s = 0;  // as soon as there is room
  }
  absl::StatusOr<std::vector<TargetRequest>> requests = ToRequests(pass.workload, subject.prompts);
  if (!requests.ok()) return requests.status();
  CancelSome(options, *requests);
  absl::StatusOr<std::vector<TargetResult>> results =
      subject.target->Run(*requests, {.most_in_flight = options.in_flight, .stop_above = options.stop_above});
  if (!results.ok()) return results.status();
  pass.results = *std::move(results);
  if (options.in_flight > 0) {
    // A request that waits for another to end comes when it is sent: its user was not there before.
    for (size_t i = 0; i < items.size(); ++i) {
      items[i].arrival_s = (*requests)[i].arrival_s = std::max(0.0, pass.results[i].sent_s);
    }
  }
  pass.summary = Summarise(*requests, pass.results);
  *subject.progress << PassLine(options, pass.summary) << std::endl;
  return pass;
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

absl::StatusOr<std::optional<OpenSummary>> RunPass(const Subject& subject, const PassOptions& options) {
  const nlohmann::ordered_json settings = SettingsOf(options);
  RecordFiles& records = *subject.records;
  if (records.HasPass(options.rate, options.last_rate, options.in_flight)) {
    const absl::Status status =
        records.CheckPass(options.rate, options.last_rate, options.in_flight, settings);
    if (!status.ok()) return status;
    *subject.progress << Offered(options) << ": on record, not measured again: "
                      << absl::StrFormat("served %.3f/s", records.ServedRate(options.rate, options.last_rate,
                                                                             options.in_flight))
                      << std::endl;
    return std::nullopt;
  }
  absl::StatusOr<MeasuredPass> pass = MeasurePass(subject, options);
  for (int tries = 1; pass.ok() && options.in_flight == 0 && pass->summary.late > 0; ++tries) {
    const std::string what = absl::StrFormat(
        "%d of %d requests were sent more than %g ms late: the run measured "
        "its client and is not recorded",
        pass->summary.late, pass->results.size(), kLateSeconds * 1e3);
    if (tries == kMostTries) return absl::AbortedError(what);
    *subject.progress << what << ", but made again" << std::endl;
    pass = MeasurePass(subject, options);
  }
  if (!pass.ok()) return pass.status();
  const OpenSummary& summary = pass->summary;
  if (summary.served == 0 && summary.unserved > 0) {
    return absl::AbortedError(absl::StrCat("none of ", pass->results.size(), " requests was served: ",
                                           FailureText(summary), ": the pass is not recorded"));
  }
  nlohmann::ordered_json figures = ToJson(summary);
  figures["notes"] = subject.work ? subject.work() : "";
  const absl::Status status = records.AddPass(
      ToArrivals(subject, options, pass->workload, summary, pass->results), settings, figures);
  if (!status.ok()) return status;
  return summary;
}

absl::Status RunRates(const Subject& subject, PassOptions options, const std::vector<double>& rates,
                      double least_served_share) {
  const auto requests = static_cast<double>(options.workload.items.size());
  const auto is_left = [&](double rate) {
    return !subject.records->HasPass(rate, options.last_rate, options.in_flight);
  };
  for (size_t i = 0; i < rates.size(); ++i) {
    const double rate = rates[i];
    options.rate = rate;
    if (subject.on_terminal && is_left(rate)) {
      double left_s = 0;
      for (size_t later = i; later < rates.size(); ++later) {
        if (is_left(rates[later])) left_s += requests / rates[later];
      }
      *subject.progress << absl::StrFormat(
                               "[%d/%d, at least %s left] %s: %.0f requests", i + 1, rates.size(),
                               absl::FormatDuration(absl::Ceil(absl::Seconds(left_s), absl::Seconds(1))),
                               Offered(options), requests)
                        << std::endl;
    }
    const absl::StatusOr<std::optional<OpenSummary>> summary = RunPass(subject, options);
    if (!summary.ok()) return summary.status();
    // Also of a pass that is on record from before.
    const std::string missed = MissedShare(
        subject.records->ServedRate(rate, options.last_rate, options.in_flight),
        subject.records->ArrivedRate(rate, options.last_rate, options.in_flight), least_served_share);
    if (missed.empty()) continue;
    *subject.progress << "the sweep ends at " << Offered(options) << ": " << missed << std::endl;
    break;
  }
  return absl::OkStatus();
}

absl::Status RunConcurrencies(const Subject& subject, PassOptions options,
                              const std::vector<int32_t>& in_flight) {
  for (const int32_t count : in_flight) {
    options.in_flight = count;
    const absl::Status status = RunPass(subject, options).status();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string MissedLimits(const OpenSummary& summary, const GoodputLimits& limits) {
  std::vector<std::string> missed;
  const auto check_ms = [&](const char* what, double is_s, double limit_s) {
    if (is_s > limit_s)
      missed.push_back(absl::StrFormat("p99 %s %.2f > %g ms", what, is_s * 1e3, limit_s * 1e3));
  };
  if (summary.unserved > 0) missed.push_back(absl::StrCat(summary.unserved, " requests were not served"));
  check_ms("TTFT", summary.ttft_s.p99, limits.ttft_p99_s);
  check_ms("ITL", summary.itl_s.p99, limits.itl_p99_s);
  const std::string share = MissedShare(summary.served_rate, summary.arrival_rate, limits.least_served_share);
  if (!share.empty()) missed.push_back(share);
  return absl::StrJoin(missed, ", ");
}

absl::StatusOr<Goodput> SearchGoodput(const Subject& subject, PassOptions options, double first_rate,
                                      const GoodputLimits& limits) {
  Goodput found;
  double& met = found.offered_rate;
  double missed = 0, rate = first_rate;
  while (missed == 0 || missed > kGoodputPrecision * met) {
    options.rate = rate;
    const absl::StatusOr<std::optional<OpenSummary>> summary = RunPass(subject, options);
    if (!summary.ok()) return summary.status();
    if (!summary->has_value())
      return absl::FailedPreconditionError(
          "--out: a search needs a folder without its records; take another one");
    const std::string misses = MissedLimits(**summary, limits);
    *subject.progress << Offered(options) << (misses.empty() ? " meets the limits" : " misses: ") << misses
                      << std::endl;
    if (misses.empty()) {
      found = {rate, (*summary)->served_rate};
    } else {
      missed = rate;
    }
    if (missed > 0 && missed <= first_rate / kLeastOfFirstRate) return Goodput{};
    rate = missed == 0 ? 2 * met : met == 0 ? missed / 2 : std::sqrt(met * missed);
  }
  return found;
}

}  // namespace ridge::bench
