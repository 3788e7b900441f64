#include "bench/measure/passes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "bench/workload/draw.h"
#include "bench/workload/python_random.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

// A pass that measured its client is made again so often in all: one moment of a busy machine ends no sweep.
constexpr int kMostTries = 3;

// Lets the clients of some requests leave, each after a number of tokens of its own.
void CancelSome(const PassOptions& options, std::vector<TargetRequest>& requests) {
  if (options.cancelled_share == 0) return;
  PythonRandom random(options.seed);
  for (TargetRequest& request : requests) {
    if (random.Uniform() >= options.cancelled_share) continue;
    request.cancel_after_tokens = 1 + static_cast<int32_t>(random.Below(request.max_tokens));
  }
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

// A pass in which no request was late, at the last try.
absl::StatusOr<MeasuredPass> MeasureInTime(const Subject& subject, const PassOptions& options) {
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
  return pass;
}

}  // namespace

std::string Offered(const PassOptions& options) {
  if (options.in_flight > 0) return absl::StrFormat("%d in flight", options.in_flight);
  if (options.rate == 0) return "at its own times";
  if (options.last_rate > 0) return absl::StrFormat("%g to %g/s", options.rate, options.last_rate);
  return absl::StrFormat("%g/s", options.rate);
}

std::string MissedShare(double served_rate, double arrived_rate, double least_share) {
  if (served_rate >= least_share * arrived_rate) return "";
  return absl::StrFormat("served %.3f/s are %.1f %% of the %.3f/s that came, less than %g %%", served_rate,
                         100 * served_rate / arrived_rate, arrived_rate, 100 * least_share);
}

absl::Status RunPass(const Subject& subject, const PassOptions& options) {
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
    return absl::OkStatus();
  }
  const absl::StatusOr<MeasuredPass> pass = MeasureInTime(subject, options);
  if (!pass.ok()) return pass.status();
  const OpenSummary& summary = pass->summary;
  if (summary.served == 0 && summary.unserved > 0) {
    return absl::AbortedError(absl::StrCat("none of ", pass->results.size(), " requests was served: ",
                                           FailureText(summary), ": the pass is not recorded"));
  }
  nlohmann::ordered_json figures = ToJson(summary);
  figures["notes"] = subject.work ? subject.work() : "";
  return records.AddPass(ToArrivals(subject, options, pass->workload, summary, pass->results), settings,
                         figures);
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
    const absl::Status status = RunPass(subject, options);
    if (!status.ok()) return status;
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
    const absl::Status status = RunPass(subject, options);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace ridge::bench
