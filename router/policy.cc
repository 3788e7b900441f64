#include "router/policy.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ridge::router {

absl::StatusOr<size_t> LeastLoaded::Pick(absl::Span<const WorkerLoad> workers, absl::string_view model) {
  bool any_ready = false;
  bool any_serves = false;
  size_t best = workers.size();
  int64_t best_load = std::numeric_limits<int64_t>::max();
  for (size_t step = 0; step < workers.size(); ++step) {
    const size_t index = (first_ + step) % workers.size();
    const WorkerLoad& worker = workers[index];
    if (!worker.ready) continue;
    any_ready = true;
    if (!model.empty() && worker.model != model) continue;
    any_serves = true;
    const int64_t load = std::max(worker.in_flight, worker.reported);
    if (worker.excluded || load >= best_load) continue;
    best = index;
    best_load = load;
  }
  if (!any_ready) return absl::UnavailableError("no worker is ready");
  if (!any_serves) return absl::NotFoundError(absl::StrCat("model: \"", model, "\" is not served here"));
  if (best == workers.size()) return absl::UnavailableError("no other worker is ready");
  first_ = best + 1;
  return best;
}

}  // namespace ridge::router
