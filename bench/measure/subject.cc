#include "bench/measure/subject.h"

#include "absl/container/flat_hash_map.h"
#include "common/hash.h"

namespace ridge::bench {

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

std::string ShortId() {
  return RandomId().substr(0, 8);
}

}  // namespace ridge::bench
