#include "bench/measure/goodput_search.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

// A search ends where the rate that was missed is no more than this times the one that was met.
constexpr double kGoodputPrecision = 1.05;
// Where this part of the first rate is missed.
constexpr double kLeastOfFirstRate = 32;
// Or where there is no more to ask for: a device without time meets every rate.
constexpr double kMostRate = 1e6;

// What a pass came to, whether it was made now or before.
absl::StatusOr<OpenSummary> RecordedSummary(const RecordFiles& records, const PassOptions& options) {
  absl::StatusOr<OpenSummary> summary =
      FromJson(records.PassFigures(options.rate, options.last_rate, options.in_flight));
  if (summary.ok()) return summary;
  return absl::FailedPreconditionError(absl::StrCat("--out: the pass at ", Offered(options), " on record: ",
                                                    summary.status().message(), "; take another one"));
}

}  // namespace

std::string MissedLimits(const OpenSummary& summary, const GoodputLimits& limits) {
  std::vector<std::string> missed;
  const auto check_ms = [&](const char* what, double is_s, double limit_s) {
    if (is_s > limit_s)
      missed.push_back(absl::StrFormat("p99 %s %.2f > %g ms", what, is_s * 1e3, limit_s * 1e3));
  };
  if (summary.unserved > 0) missed.push_back(absl::StrCat(summary.unserved, " requests were not served"));
  check_ms("TTFT", summary.ttft_s.p99, limits.ttft_p99_s);
  check_ms("ITL", summary.itl_s.p99, limits.itl_p99_s);
  const std::string share = MissedShare(summary.served_rate, StayedRate(summary), limits.least_served_share);
  if (!share.empty()) missed.push_back(share);
  return absl::StrJoin(missed, ", ");
}

absl::StatusOr<Goodput> SearchGoodput(const Subject& subject, PassOptions options, double first_rate,
                                      const GoodputLimits& limits) {
  Goodput found;
  double& met = found.offered_rate;
  double missed = 0, rate = first_rate;
  while (rate <= kMostRate && (missed == 0 || missed > kGoodputPrecision * met)) {
    options.rate = rate;
    if (absl::Status status = RunPass(subject, options); !status.ok()) return status;
    const absl::StatusOr<OpenSummary> summary = RecordedSummary(*subject.records, options);
    if (!summary.ok()) return summary.status();
    const std::string misses = MissedLimits(*summary, limits);
    *subject.progress << Offered(options) << (misses.empty() ? " meets the limits" : " misses: ") << misses
                      << std::endl;
    if (misses.empty()) {
      found = {rate, summary->served_rate};
    } else {
      missed = rate;
    }
    if (missed > 0 && missed <= first_rate / kLeastOfFirstRate) return Goodput{};
    rate = missed == 0 ? 2 * met : met == 0 ? missed / 2 : std::sqrt(met * missed);
  }
  return found;
}

}  // namespace ridge::bench
