#include "router/policy.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"

namespace ridge::router {

std::vector<bool> Differing(absl::Span<const WorkerLoad> workers) {
  using Kind = std::tuple<absl::string_view, absl::string_view, int32_t>;
  const auto kind = [](const WorkerLoad& worker) {
    return Kind(worker.model, worker.numerics_id, worker.context_length);
  };
  std::map<Kind, int> counts;
  for (const WorkerLoad& worker : workers) {
    if (worker.ready) ++counts[kind(worker)];
  }
  std::map<absl::string_view, Kind> common;  // by the model's name
  for (const WorkerLoad& worker : workers) {
    if (!worker.ready) continue;
    Kind& most = common.try_emplace(worker.model, kind(worker)).first->second;
    if (counts[kind(worker)] > counts[most]) most = kind(worker);
  }
  std::vector<bool> differing;
  for (const WorkerLoad& worker : workers) {
    differing.push_back(worker.ready && common[worker.model] != kind(worker));
  }
  return differing;
}

absl::StatusOr<size_t> LeastLoaded::Pick(absl::Span<const WorkerLoad> workers, absl::string_view model) {
  const std::vector<bool> differing = Differing(workers);
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
    if (worker.excluded || differing[index] || load >= best_load) continue;
    best = index;
    best_load = load;
  }
  if (!any_ready) return absl::UnavailableError("no worker is ready");
  if (!any_serves) {
    std::set<std::string> served;
    for (const WorkerLoad& worker : workers) {
      if (worker.ready) served.insert(Quoted(worker.model));
    }
    return absl::NotFoundError(absl::StrCat("model: ", Quoted(model), " is not served here; there is ",
                                            absl::StrJoin(served, ", ")));
  }
  if (best == workers.size()) return absl::UnavailableError("no other worker is ready");
  first_ = best + 1;
  return best;
}

}  // namespace ridge::router
