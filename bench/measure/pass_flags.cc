#include "bench/measure/pass_flags.h"

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "bench/records/gzip_file.h"
#include "bench/workload/draw.h"
#include "bench/workload/trace.h"
#include "common/status.h"

ABSL_FLAG(
    std::vector<std::string>, rates, {},
    "offered requests a second, a pass each; default: the workload's own times, or 1 where it is drawn");
ABSL_FLAG(double, last_rate, 0, "the rate goes evenly from that of --rates to this one; 0: it stays");
ABSL_FLAG(std::vector<std::string>, in_flight, {}, "instead of --rates: requests under way, a pass each");
ABSL_FLAG(double, burstiness, 1, "1 is a Poisson process, less comes in bursts");
ABSL_FLAG(int, requests, 400, "of the mixed draw, or the first ones of a recorded trace");
ABSL_FLAG(uint64_t, draw_seed, 0, "seed of mixed draws, arrivals and leaving clients");
ABSL_FLAG(std::string, workload, "", "frozen workload, as `draw` writes it, instead of the mixed draw");
ABSL_FLAG(std::string, mooncake, "", "recorded trace instead of the mixed draw: Mooncake's JSON lines");
ABSL_FLAG(std::string, burstgpt, "", "recorded trace instead of the mixed draw: BurstGPT's CSV");
ABSL_FLAG(double, time_scale, 1, "gaps of a trace are multiplied by it");
ABSL_FLAG(int, most_tokens, 1 << 20, "requests of a trace with more tokens are left out");
ABSL_FLAG(double, least_served, 0,
          "end after the first rate at which less than this share of what came a second is served");
ABSL_FLAG(int, stop_above, 0, "stop sending where more requests than this are unanswered; 0: never");
ABSL_FLAG(double, cancelled_share, 0, "of the requests: their clients leave after a random number of tokens");
ABSL_FLAG(bool, goodput, false, "instead of --rates: search the highest rate that meets the limits");
ABSL_FLAG(double, first_rate, 1, "where the search begins, requests a second");
ABSL_FLAG(absl::Duration, ttft_limit, absl::Milliseconds(500), "p99 of the time to the first token");
ABSL_FLAG(absl::Duration, itl_limit, absl::Milliseconds(25), "p99 of the gaps between tokens");

namespace ridge::bench {
namespace {

constexpr int kMostRequests = 1'000'000;
constexpr double kMostRate = 1e6;    // a second
constexpr double kMostFactor = 1e6;  // of burstiness and time scale

bool IsRate(double value) {
  return value > 0 && value <= kMostRate;
}

absl::StatusOr<Workload> ReadTrace(const std::string& flag, const std::string& path, bool is_mooncake) {
  absl::StatusOr<std::string> text = ReadGzip(path);
  if (!text.ok()) return InvalidField(flag, text.status().message());
  const TraceOptions options{absl::GetFlag(FLAGS_time_scale), absl::GetFlag(FLAGS_requests),
                             absl::GetFlag(FLAGS_most_tokens)};
  absl::StatusOr<Trace> trace =
      is_mooncake ? FromMooncake(*text, path, options) : FromBurstGpt(*text, path, options);
  if (!trace.ok()) return InvalidField(flag, trace.status().message());
  absl::StrAppend(&trace->workload.origin, "; left out: ", trace->failed, " failed, ", trace->too_long,
                  " too long");
  return std::move(trace->workload);
}

absl::StatusOr<Workload> WorkloadFromFlags() {
  const std::string frozen = absl::GetFlag(FLAGS_workload), mooncake = absl::GetFlag(FLAGS_mooncake),
                    burstgpt = absl::GetFlag(FLAGS_burstgpt);
  if (!frozen.empty() + !mooncake.empty() + !burstgpt.empty() > 1) {
    return InvalidField("--workload", "give one of --workload, --mooncake and --burstgpt");
  }
  if (!mooncake.empty()) return ReadTrace("--mooncake", mooncake, true);
  if (!burstgpt.empty()) return ReadTrace("--burstgpt", burstgpt, false);
  if (frozen.empty()) return MixedDraw(absl::GetFlag(FLAGS_draw_seed), absl::GetFlag(FLAGS_requests));
  absl::StatusOr<Workload> workload = ReadWorkload(frozen);
  if (!workload.ok()) return InvalidField("--workload", workload.status().message());
  return workload;
}

absl::StatusOr<std::vector<double>> RatesFromFlags(bool has_times) {
  std::vector<double> rates;
  for (const std::string& text : absl::GetFlag(FLAGS_rates)) {
    double rate = 0;
    if (!absl::SimpleAtod(text, &rate) || !IsRate(rate)) {
      return InvalidField("--rates", absl::StrCat("\"", text, "\" is not a rate above 0 and up to 1e6"));
    }
    rates.push_back(rate);
  }
  if (rates.empty() && !has_times) rates.push_back(1);
  return rates;
}

}  // namespace

absl::Status CheckAtLeast(absl::string_view flag, double value, double least) {
  if (value >= least) return absl::OkStatus();
  return InvalidField(flag, absl::StrCat(value, " is less than ", least));
}

absl::Status CheckShare(absl::string_view flag, double value) {
  if (value >= 0 && value <= 1) return absl::OkStatus();
  return InvalidField(flag, absl::StrCat(value, " is no share from 0 to 1"));
}

absl::StatusOr<std::vector<int32_t>> ParseCounts(absl::string_view flag,
                                                 const std::vector<std::string>& texts,
                                                 absl::string_view prefix, int most) {
  std::vector<int32_t> values;
  for (const std::string& text : texts) {
    int32_t value = 0;
    if (!absl::SimpleAtoi(absl::StripPrefix(text, prefix), &value) || value < 1 || value > most) {
      return InvalidField(flag, absl::StrCat("\"", text, "\" is not a number from 1 to ", most));
    }
    values.push_back(value);
  }
  return values;
}

absl::StatusOr<PassFlags> PassFlagsFromFlags() {
  PassFlags flags;
  const double time_scale = absl::GetFlag(FLAGS_time_scale);
  flags.pass.last_rate = absl::GetFlag(FLAGS_last_rate);
  flags.pass.burstiness = absl::GetFlag(FLAGS_burstiness);
  flags.pass.seed = absl::GetFlag(FLAGS_draw_seed);
  flags.pass.stop_above = absl::GetFlag(FLAGS_stop_above);
  flags.pass.cancelled_share = absl::GetFlag(FLAGS_cancelled_share);
  flags.least_served_share = absl::GetFlag(FLAGS_least_served);
  flags.search_goodput = absl::GetFlag(FLAGS_goodput);
  flags.first_rate = absl::GetFlag(FLAGS_first_rate);
  flags.limits = {absl::ToDoubleSeconds(absl::GetFlag(FLAGS_ttft_limit)),
                  absl::ToDoubleSeconds(absl::GetFlag(FLAGS_itl_limit))};
  absl::Status status = CheckAtLeast("--requests", absl::GetFlag(FLAGS_requests), 1);
  status.Update(CheckAtLeast("--most_tokens", absl::GetFlag(FLAGS_most_tokens), 2));
  if (flags.pass.last_rate != 0 && !IsRate(flags.pass.last_rate)) {
    status.Update(InvalidField("--last_rate", "is neither 0 nor a rate up to 1e6"));
  }
  if (!IsRate(flags.first_rate))
    status.Update(InvalidField("--first_rate", "is not a rate above 0 and up to 1e6"));
  status.Update(CheckShare("--least_served", flags.least_served_share));
  status.Update(CheckAtLeast("--stop_above", flags.pass.stop_above, 0));
  status.Update(CheckShare("--cancelled_share", flags.pass.cancelled_share));
  const std::pair<const char*, double> positive[] = {{"--burstiness", flags.pass.burstiness},
                                                     {"--time_scale", time_scale},
                                                     {"--ttft_limit", flags.limits.ttft_p99_s},
                                                     {"--itl_limit", flags.limits.itl_p99_s}};
  for (const auto& [flag, value] : positive) {
    if (!(value > 0)) status.Update(InvalidField(flag, "must be more than 0"));
  }
  for (const auto& [flag, value] : {positive[0], positive[1]}) {
    if (value > kMostFactor) status.Update(InvalidField(flag, "must be 1e6 at most"));
  }
  if (!status.ok()) return status;
  absl::StatusOr<Workload> workload = WorkloadFromFlags();
  if (!workload.ok()) return workload.status();
  flags.pass.workload = *std::move(workload);
  flags.is_trace = !absl::GetFlag(FLAGS_mooncake).empty() || !absl::GetFlag(FLAGS_burstgpt).empty();
  absl::StatusOr<std::vector<int32_t>> in_flight =
      ParseCounts("--in_flight", absl::GetFlag(FLAGS_in_flight), "", kMostRequests);
  if (!in_flight.ok()) return in_flight.status();
  flags.in_flight = *std::move(in_flight);
  const bool has_times = flags.is_trace || !absl::GetFlag(FLAGS_workload).empty();
  absl::StatusOr<std::vector<double>> rates = RatesFromFlags(has_times || !flags.in_flight.empty());
  if (!rates.ok()) return rates.status();
  flags.rates = *std::move(rates);
  if (!flags.rates.empty() && !flags.in_flight.empty()) {
    return InvalidField("--in_flight", "does not go with --rates");
  }
  return flags;
}

absl::Status CheckContext(const PassFlags& flags, int32_t context_tokens) {
  const int32_t longest = LongestOf(flags.pass.workload);
  if (longest <= context_tokens) return absl::OkStatus();
  const std::string what =
      absl::StrCat("the longest request has ", longest, " tokens, more than the context of ", context_tokens);
  if (flags.is_trace) {
    return InvalidField("--most_tokens", absl::StrCat(what, "; ", context_tokens, " leaves such out"));
  }
  return InvalidField("--workload", absl::StrCat(what, "; give one with shorter requests"));
}

absl::Status RunPasses(const Subject& subject, const PassFlags& flags) {
  if (flags.search_goodput) {
    const absl::StatusOr<Goodput> found = SearchGoodput(subject, flags.pass, flags.first_rate, flags.limits);
    if (!found.ok()) return found.status();
    *subject.progress << absl::StrFormat(
                             "goodput: %.2f requests/s offered, %.2f served, with p99 TTFT <= %g ms and p99 "
                             "ITL <= %g ms",
                             found->offered_rate, found->served_rate, flags.limits.ttft_p99_s * 1e3,
                             flags.limits.itl_p99_s * 1e3)
                      << std::endl;
    return absl::OkStatus();
  }
  if (!flags.in_flight.empty()) return RunConcurrencies(subject, flags.pass, flags.in_flight);
  if (!flags.rates.empty()) return RunRates(subject, flags.pass, flags.rates, flags.least_served_share);
  *subject.progress << "workload: " << flags.pass.workload.origin << std::endl;
  return RunPass(subject, flags.pass);
}

}  // namespace ridge::bench
