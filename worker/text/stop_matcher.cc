#include "worker/text/stop_matcher.h"

#include <utility>

namespace ridge::worker {

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include_stop)
    : include_stop_(include_stop), automaton_(stops) {}

StopMatcher::Result StopMatcher::Push(absl::string_view delta) {
  Result result;
  if (automaton_.empty()) {
    result.text = std::string(delta);
    return result;
  }
  held_.reserve(held_.size() + delta.size());
  for (char byte : delta) {
    held_.push_back(byte);
    state_ = automaton_.Step(state_, byte);
    if (automaton_.matched(state_) >= 0) {
      result.matched = automaton_.matched(state_);
      if (!include_stop_) held_.resize(held_.size() - static_cast<size_t>(automaton_.matched_size(state_)));
      result.text = std::exchange(held_, {});
      return result;
    }
  }
  const size_t safe = held_.size() - static_cast<size_t>(automaton_.depth(state_));
  result.text = held_.substr(0, safe);
  held_.erase(0, safe);
  return result;
}

std::string StopMatcher::Flush() {
  state_ = 0;
  return std::exchange(held_, {});
}

}  // namespace ridge::worker
