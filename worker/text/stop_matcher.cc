#include "worker/text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace ridge::worker {
namespace {

int64_t ChildKey(int32_t node, char byte) {
  return int64_t{node} << 8 | static_cast<uint8_t>(byte);
}

}  // namespace

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include_stop)
    : include_stop_(include_stop) {
  nodes_.emplace_back();
  for (size_t i = 0; i < stops.size(); ++i) Insert(stops[i], static_cast<int32_t>(i));
  LinkSuffixes(stops);
}

void StopMatcher::Insert(absl::string_view stop, int32_t index) {
  int32_t node = 0;
  for (char byte : stop) {
    const auto [it, is_new] =
        children_.try_emplace(ChildKey(node, byte), static_cast<int32_t>(nodes_.size()));
    if (is_new) {
      nodes_.emplace_back();
      nodes_.back().depth = nodes_[node].depth + 1;
    }
    node = it->second;
  }
  if (nodes_[node].matched < 0) {
    nodes_[node].matched = index;
    nodes_[node].matched_size = static_cast<int32_t>(stop.size());
  }
}

void StopMatcher::LinkSuffixes(const std::vector<std::string>& stops) {
  // By depth, so that shorter prefixes are linked before longer ones.
  size_t longest = 0;
  for (const std::string& stop : stops) longest = std::max(longest, stop.size());
  std::vector<int32_t> at(stops.size(), 0);  // where each stop string stands
  for (size_t depth = 0; depth < longest; ++depth) {
    for (size_t i = 0; i < stops.size(); ++i) {
      if (depth >= stops[i].size()) continue;
      const int32_t parent = at[i];
      const int32_t node = at[i] = Child(parent, stops[i][depth]);
      if (parent == 0) continue;
      nodes_[node].fail = Step(nodes_[parent].fail, stops[i][depth]);
      const Node& suffix = nodes_[nodes_[node].fail];
      if (nodes_[node].matched < 0) {
        nodes_[node].matched = suffix.matched;
        nodes_[node].matched_size = suffix.matched_size;
      }
    }
  }
}

int32_t StopMatcher::Child(int32_t node, char byte) const {
  const auto it = children_.find(ChildKey(node, byte));
  return it == children_.end() ? -1 : it->second;
}

int32_t StopMatcher::Step(int32_t node, char byte) const {
  for (;;) {
    const int32_t child = Child(node, byte);
    if (child >= 0) return child;
    if (node == 0) return 0;
    node = nodes_[node].fail;
  }
}

StopMatcher::Result StopMatcher::Push(absl::string_view delta) {
  Result result;
  if (nodes_.size() == 1) {
    result.text = std::string(delta);
    return result;
  }
  held_.reserve(held_.size() + delta.size());
  for (char byte : delta) {
    held_.push_back(byte);
    state_ = Step(state_, byte);
    const Node& node = nodes_[state_];
    if (node.matched >= 0) {
      result.matched = node.matched;
      if (!include_stop_) held_.resize(held_.size() - node.matched_size);
      result.text = std::exchange(held_, {});
      return result;
    }
  }
  const size_t safe = held_.size() - nodes_[state_].depth;
  result.text = held_.substr(0, safe);
  held_.erase(0, safe);
  return result;
}

std::string StopMatcher::Flush() {
  state_ = 0;
  return std::exchange(held_, {});
}

}  // namespace ridge::worker
