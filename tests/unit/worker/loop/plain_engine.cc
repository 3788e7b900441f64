#include "tests/unit/worker/loop/plain_engine.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "worker/decision/sequence_memory.h"
#include "worker/decision/waiting_queue.h"

namespace ridge::worker {

PlainEngine::PlainEngine(const EngineConfig& config) : config_(config) {
  for (BlockId block = config.num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

void PlainEngine::Add(SequenceId first, int32_t num_choices, const SequenceSpec& spec,
                      const std::vector<TokenId>& output) {
  for (int32_t i = 0; i < num_choices; ++i) {
    Item item{
        .id = first + static_cast<SequenceId>(i), .first = first, .num_choices = num_choices, .spec = spec};
    item.tokens = spec.prompt;
    item.tokens.insert(item.tokens.end(), output.begin(), output.end());
    if (i > 0) item.state = State::kHeld;
    EnterTenant(spec.tenant);
    items_.emplace(item.id, std::move(item));
  }
}

void PlainEngine::Cancel(SequenceId first) {
  std::vector<SequenceId> choices;
  for (const auto& [id, item] : items_) {
    if (item.first == first) choices.push_back(id);
  }
  for (SequenceId id : choices) Stop(id);
}

void PlainEngine::Stop(SequenceId choice) {
  const auto it = items_.find(choice);
  if (it == items_.end() || it->second.state == State::kFinished) return;
  Finish(&it->second);
  Settle(&it->second);
}

std::vector<PlainPlan> PlainEngine::Turn(int64_t now_ns) {
  std::vector<PlainPlan> plans;
  const size_t most = config_.policy.launch == LaunchPolicy::kGraph ? 2 : 1;
  while (in_flight_.size() < most) {
    PlainPlan plan = Plan(now_ns);
    if (plan.rows.empty()) break;
    plans.push_back(std::move(plan));
  }
  if (!in_flight_.empty()) Collect();
  return plans;
}

int32_t PlainEngine::Count(State state) const {
  return static_cast<int32_t>(std::count_if(items_.begin(), items_.end(),
                                            [&](const auto& entry) { return entry.second.state == state; }));
}

std::vector<PlainEngine::Item*> PlainEngine::Running() {
  std::vector<Item*> running;
  for (auto& [id, item] : items_) {
    if (item.state == State::kRunning) running.push_back(&item);
  }
  std::stable_sort(running.begin(), running.end(),
                   [](const Item* a, const Item* b) { return a->spec.priority > b->spec.priority; });
  return running;
}

bool PlainEngine::SomeWillFree() {
  return std::any_of(items_.begin(), items_.end(), [](const auto& entry) {
    const Item& item = entry.second;
    return item.has_slot && (item.state != State::kRunning || item.all_planned());
  });
}

int32_t PlainEngine::RunningOf(const std::string& tenant) const {
  return static_cast<int32_t>(std::count_if(items_.begin(), items_.end(), [&](const auto& entry) {
    return entry.second.state == State::kRunning && entry.second.spec.tenant == tenant;
  }));
}

bool PlainEngine::HasSlot() const {
  const auto taken =
      std::count_if(items_.begin(), items_.end(), [](const auto& entry) { return entry.second.has_slot; });
  return taken < config_.max_running;
}

PlainPlan PlainEngine::Plan(int64_t now_ns) {
  if (ReclaimSlot(now_ns)) return {};
  ++plan_;
  for (auto& [id, item] : items_) {
    if (item.state == State::kHeld && releasing_.contains(item.first)) item.state = State::kWaiting;
  }
  releasing_.clear();
  PlainPlan plan;
  Step step;
  PlanDecodes(&plan, &step);
  PlanChunks(now_ns, &plan, &step);
  if (!step.rows.empty()) in_flight_.push_back(std::move(step));
  return plan;
}

bool PlainEngine::ReclaimSlot(int64_t now_ns) {
  if (HasSlot()) return false;
  const Item* prefill = NextPrefill(now_ns, {});
  for (Item* item = NextWaiting(now_ns, nullptr); item != nullptr; item = NextWaiting(now_ns, item)) {
    Item* victim = VictimFor(*item, {});
    if (victim == nullptr || (prefill != nullptr && !GoesBefore(*item, *prefill, now_ns))) continue;
    claimant_ = item->id;
    if (!SomeWillFree()) Preempt(victim);
    return !HasSlot();
  }
  return false;
}

void PlainEngine::PlanDecodes(PlainPlan* plan, Step* step) {
  const auto wants = [](const Item& item) {
    return item.state == State::kRunning && item.is_prefilled() && !item.all_planned();
  };
  for (Item* item : Running()) {
    if (!wants(*item) || !item->needs_block()) continue;
    while (available_blocks() == 0 && item->state == State::kRunning && !SomeWillFree()) {
      // The youngest of the lowest priority: younger than this one, or it is this one.
      Item* victim = item;
      const std::vector<Item*> running = Running();
      for (auto it = running.rbegin(); *it != item; ++it) {
        if ((*it)->is_protected()) continue;
        victim = *it;
        break;
      }
      Preempt(victim);
    }
    if (available_blocks() == 0 || item->state != State::kRunning) continue;
    item->blocks.push_back(TakeBlocks(1)[0]);
    plan->blocks[item->id].push_back(item->blocks.back());
  }
  for (Item* item : Running()) {
    if (wants(*item) && !item->needs_block()) AddRows(item, 1, 1, plan, step);
  }
}

void PlainEngine::PlanChunks(int64_t now_ns, PlainPlan* plan, Step* step) {
  int32_t budget = config_.step_tokens - static_cast<int32_t>(step->rows.size());
  std::set<SequenceId> planned, admitted;
  for (const auto& [id, rows, outputs] : step->rows) planned.insert(id);
  // Rows of tenants that flood, and of the others.
  int32_t flood_rows = 0, light_rows = 0;
  const bool last_was_short = std::exchange(is_short_, false);
  const Item* refused = nullptr;
  while (budget > 0) {
    Item* running = NextPrefill(now_ns, planned);
    Item* waiting = NextWaiting(now_ns, refused);
    const bool admit = waiting != nullptr && (running == nullptr || GoesBefore(*waiting, *running, now_ns));
    Item* item = admit ? waiting : running;
    if (item == nullptr) return;
    int32_t most = std::min(budget, config_.chunk_tokens);
    if (Floods(item->spec.tenant) && light_rows > 0 && !last_was_short)
      most = std::min(most, std::max({light_rows, config_.step_tokens / 8, 1}) - flood_rows);
    if (most <= 0) {
      is_short_ = true;
      return;
    }
    if (admit) {
      if (!Admit(item, admitted, now_ns, plan)) {
        refused = item;
        continue;
      }
      admitted.insert(item->id);
    }
    planned.insert(item->id);
    item->prefilled_ns = now_ns;
    const int32_t rows = std::min(item->prefill - item->planned, most);
    (Floods(item->spec.tenant) ? flood_rows : light_rows) += rows;
    budget -= rows;
    AddRows(item, rows, item->planned + rows == item->prefill ? 1 : 0, plan, step);
  }
}

bool PlainEngine::Floods(const std::string& tenant) const {
  int64_t left = 0;
  for (const auto& [id, item] : items_) {
    if (item.spec.tenant != tenant) continue;
    if (item.state == State::kWaiting) left += item.known() - (IsLent(item) ? item.prompt() - 1 : 0);
    if (item.state == State::kRunning) left += std::max(item.prefill - item.planned, 0);
  }
  return left > config_.step_tokens;
}

bool PlainEngine::IsLent(const Item& item) const {
  return std::any_of(items_.begin(), items_.end(), [&](const auto& entry) {
    const Item& other = entry.second;
    return other.first == item.first && other.state == State::kRunning && other.lends_from >= 0;
  });
}

void PlainEngine::AddRows(Item* item, int32_t rows, int32_t outputs, PlainPlan* plan, Step* step) {
  plan->rows.emplace_back(item->id, item->planned, rows, outputs);
  step->rows.emplace_back(item->id, rows, outputs);
  item->planned += rows;
  item->promised += outputs;
  ++item->in_flight;
  served_.at(item->spec.tenant) += rows;
  // Nobody is more than two steps behind the most served of those that were active together.
  most_served_ = std::max(most_served_, served_.at(item->spec.tenant));
  for (auto& [tenant, served] : served_) served = std::max(served, most_served_ - 2 * config_.step_tokens);
  if (item->num_choices > 1 && item->planned >= item->prompt() && item->lends_from < 0) {
    item->lends_from = plan_ + 1;
    ReleaseChoices(item->first);
  }
}

bool PlainEngine::GoesBefore(const Item& waiting, const Item& running, int64_t now_ns) const {
  const auto rank = [this](int64_t of_class, const std::string& tenant) {
    return std::tuple(-of_class, served_.at(tenant), RunningOf(tenant));
  };
  const int64_t ages = (now_ns - running.prefilled_ns) / WaitingQueue::kAgeingNs;
  return rank(waiting.spec.priority, waiting.spec.tenant) <
         rank(running.spec.priority + ages, running.spec.tenant);
}

PlainEngine::Item* PlainEngine::NextWaiting(int64_t now_ns, const Item* refused) {
  if (refused == nullptr && claimant_ != 0) return &items_.at(claimant_);
  // The head of each tenant's line of a class; items are in the order of ids.
  std::map<std::pair<std::string, int32_t>, Item*> heads;
  for (auto& [id, item] : items_) {
    if (item.state == State::kWaiting) heads.try_emplace({item.spec.tenant, item.spec.priority}, &item);
  }
  Item* next = nullptr;
  const auto class_of = [&](const Item& item) {
    int64_t since_ns = item.spec.arrival_ns;
    const auto admitted = admitted_ns_.find({item.spec.tenant, item.spec.priority});
    if (admitted != admitted_ns_.end()) since_ns = std::max(since_ns, admitted->second);
    return item.spec.priority + (now_ns - since_ns) / WaitingQueue::kAgeingNs;
  };
  const auto rank = [&](const Item& item) {
    return std::tuple(-class_of(item), served_.at(item.spec.tenant), RunningOf(item.spec.tenant), item.id);
  };
  for (const auto& [line, head] : heads) {
    // Who passes another runs at least two fewer, and is of no lower priority.
    if (refused != nullptr && (RunningOf(head->spec.tenant) + 2 > RunningOf(refused->spec.tenant) ||
                               head->spec.priority < refused->spec.priority))
      continue;
    if (next == nullptr || rank(*head) < rank(*next)) next = head;
  }
  return next;
}

PlainEngine::Item* PlainEngine::NextPrefill(int64_t now_ns, const std::set<SequenceId>& planned) {
  Item* next = nullptr;
  const auto rank = [&](const Item& item) {
    const int64_t ages = (now_ns - item.prefilled_ns) / WaitingQueue::kAgeingNs;
    return std::tuple(-(item.spec.priority + ages), served_.at(item.spec.tenant), RunningOf(item.spec.tenant),
                      item.id);
  };
  for (Item* item : Running()) {
    if (item->is_prefilled() || planned.contains(item->id)) continue;
    if (next == nullptr || rank(*item) < rank(*next)) next = item;
  }
  return next;
}

bool PlainEngine::Admit(Item* item, const std::set<SequenceId>& admitted, int64_t now_ns, PlainPlan* plan) {
  while (!HasSlot() || !TakeBlocks(item, plan)) {
    Item* victim = SomeWillFree() ? nullptr : VictimFor(*item, admitted);
    if (victim == nullptr) return false;
    claimant_ = item->id;
    Preempt(victim);
  }
  if (claimant_ == item->id) claimant_ = 0;
  item->state = State::kRunning;
  item->has_slot = true;
  item->lends_from = -1;
  plan->blocks[item->id] = item->blocks;
  admitted_ns_[{item->spec.tenant, item->spec.priority}] = now_ns;
  ForgetEmptyLines();
  return true;
}

PlainEngine::Item* PlainEngine::VictimFor(const Item& item, const std::set<SequenceId>& admitted) {
  Item* victim = nullptr;
  int32_t most = RunningOf(item.spec.tenant) + 1;
  const std::vector<Item*> running = Running();
  for (auto it = running.rbegin(); it != running.rend(); ++it) {
    const int32_t share = RunningOf((*it)->spec.tenant);
    if ((*it)->is_protected() || (*it)->spec.priority > item.spec.priority || share <= most) continue;
    if (admitted.contains((*it)->id)) continue;
    victim = *it;
    most = share;
  }
  return victim;
}

bool PlainEngine::TakeBlocks(Item* item, PlainPlan* plan) {
  const int32_t spared = running() == 0 ? 0 : config_.num_blocks / 100;
  if (item->id == refused_ && available_blocks() - spared < refused_missing_) return false;
  const Item* lender = nullptr;
  for (const auto& [id, other] : items_) {
    if (other.first != item->first || id == item->id || other.state != State::kRunning) continue;
    if (other.lends_from < 0 || other.lends_from > plan_) continue;
    lender = &other;
    break;
  }
  int32_t rows = 0;
  int64_t node = 0;
  std::vector<BlockId> found;
  if (lender != nullptr) {
    rows = item->prompt() - 1;
    found.assign(lender->blocks.begin(), lender->blocks.begin() + rows / kBlockTokens);
  } else if (config_.policy.prefix_cache) {
    for (; rows + kBlockTokens <= item->known() - 1; rows += kBlockTokens) {
      const Node* next = FindNode(node, item->spec.cache_salt, Tokens(*item, rows));
      if (next == nullptr) break;
      found.push_back(next->block);
      node = next->id;
    }
  }
  for (BlockId block : found) AddReader(block);
  const int32_t wanted = item->is_protected()
                             ? SequenceMemory::BlocksAtLimit(item->prompt(), item->spec.max_tokens)
                             : BlocksForTokens(item->known());
  const int32_t missing = wanted - static_cast<int32_t>(found.size());
  if (missing > available_blocks() - spared) {
    ReleaseBlocks(found);
    refused_ = item->id;
    refused_missing_ = missing;
    return false;
  }
  refused_ = 0;
  item->blocks = found;
  for (BlockId block : TakeBlocks(missing)) item->blocks.push_back(block);
  if (rows % kBlockTokens > 0)
    plan->copies.emplace_back(lender->blocks[found.size()], item->blocks[found.size()]);
  item->published = lender != nullptr ? 0 : static_cast<int32_t>(found.size());
  item->node = node;
  item->prefill = item->known();
  item->planned = item->collected = rows;
  item->promised = item->generated;
  if (lender == nullptr) found_tokens_ += rows;
  return true;
}

void PlainEngine::Collect() {
  const Step step = in_flight_.front();
  in_flight_.pop_front();
  for (const auto& [id, rows, outputs] : step.rows) {
    Item* item = &items_.at(id);
    item->collected += rows;
    --item->in_flight;
    if (item->state != State::kFinished) {
      Publish(item);
      item->generated += outputs;
      if (item->generated == item->spec.max_tokens) Finish(item);
    }
    Settle(item);
  }
}

void PlainEngine::Publish(Item* item) {
  if (!config_.policy.prefix_cache) return;
  while ((item->published + 1) * kBlockTokens <= item->collected) {
    // What the chain rests on may be gone: it begins anew.
    if (!IsKnown(item->node)) item->published = item->node = 0;
    const std::vector<TokenId> tokens = Tokens(*item, item->published * kBlockTokens);
    const Node* node = FindNode(item->node, item->spec.cache_salt, tokens);
    if (node == nullptr) {
      const BlockId block = item->blocks[static_cast<size_t>(item->published)];
      nodes_.push_back(
          {++last_node_, item->node, item->node == 0 ? item->spec.cache_salt : "", tokens, block});
      node = &nodes_.back();
    }
    item->node = node->id;
    ++item->published;
  }
}

void PlainEngine::Finish(Item* item) {
  if (item->num_choices > 1 && item->state != State::kHeld) ReleaseChoices(item->first);
  item->state = State::kFinished;
  if (claimant_ == item->id) claimant_ = 0;
  ForgetEmptyLines();
  LeaveTenant(item->spec.tenant);
}

void PlainEngine::Settle(Item* item) {
  if (item->in_flight > 0) return;
  if (item->state == State::kPreempted) {
    GiveBack(item);
    item->state = State::kWaiting;
  } else if (item->state == State::kFinished) {
    if (item->has_slot) GiveBack(item);
    items_.erase(item->id);
  }
}

void PlainEngine::Preempt(Item* item) {
  item->state = State::kPreempted;
  ++item->preemptions;
  ++preemptions_;
  Settle(item);
}

void PlainEngine::GiveBack(Item* item) {
  ReleaseBlocks(item->blocks);
  item->blocks.clear();
  item->has_slot = false;
}

void PlainEngine::ReleaseChoices(SequenceId first) {
  if (planned_prompts_.insert(first).second) releasing_.insert(first);
}

std::vector<TokenId> PlainEngine::Tokens(const Item& item, int32_t begin) {
  return {item.tokens.begin() + begin, item.tokens.begin() + begin + kBlockTokens};
}

std::vector<BlockId> PlainEngine::TakeBlocks(int32_t count) {
  std::vector<BlockId> taken;
  std::set<BlockId> evicted;
  for (int32_t i = 0; i < count; ++i) {
    if (!free_.empty()) {
      taken.push_back(free_.back());
      free_.pop_back();
    } else {
      taken.push_back(idle_.front());
      evicted.insert(idle_.front());
      idle_.erase(idle_.begin());
    }
    readers_[taken.back()] = 1;
  }
  Evict(std::move(evicted));
  return taken;
}

void PlainEngine::Evict(std::set<BlockId> blocks) {
  for (size_t known = 0; known != blocks.size();) {
    known = blocks.size();
    std::set<int64_t> ids;
    for (const Node& node : nodes_) {
      if (blocks.contains(node.block)) ids.insert(node.id);
    }
    for (const Node& node : nodes_) {
      if (ids.contains(node.parent)) blocks.insert(node.block);
    }
  }
  evictions_ += static_cast<int64_t>(blocks.size());
  std::erase_if(nodes_, [&](const Node& node) { return blocks.contains(node.block); });
  for (BlockId block : blocks) {
    if (std::erase(idle_, block) > 0) free_.push_back(block);
  }
}

void PlainEngine::ReleaseBlocks(const std::vector<BlockId>& blocks) {
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    if (--readers_[*it] > 0) continue;
    const bool known =
        std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) { return node.block == *it; });
    (known ? idle_ : free_).push_back(*it);
  }
}

void PlainEngine::AddReader(BlockId block) {
  std::erase(idle_, block);
  ++readers_[block];
}

const PlainEngine::Node* PlainEngine::FindNode(int64_t parent, const std::string& salt,
                                               const std::vector<TokenId>& tokens) const {
  for (const Node& node : nodes_) {
    if (node.parent == parent && node.tokens == tokens && (parent != 0 || node.salt == salt)) return &node;
  }
  return nullptr;
}

bool PlainEngine::IsKnown(int64_t node) const {
  return node == 0 || std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& n) { return n.id == node; });
}

void PlainEngine::EnterTenant(const std::string& tenant) {
  int64_t least = active_.empty() ? 0 : INT64_MAX;
  for (const auto& [name, count] : active_) least = std::min(least, served_.at(name));
  if (active_[tenant]++ > 0) return;
  served_[tenant] =
      std::max({served_[tenant], least - config_.step_tokens, most_served_ - 2 * config_.step_tokens});
}

void PlainEngine::LeaveTenant(const std::string& tenant) {
  if (--active_.at(tenant) == 0) active_.erase(tenant);
  if (!active_.empty()) return;
  served_.clear();
  most_served_ = 0;
}

void PlainEngine::ForgetEmptyLines() {
  std::erase_if(admitted_ns_, [this](const auto& line) {
    return std::none_of(items_.begin(), items_.end(), [&](const auto& entry) {
      const Item& item = entry.second;
      return item.state == State::kWaiting && item.spec.tenant == line.first.first &&
             item.spec.priority == line.first.second;
    });
  });
}

}  // namespace ridge::worker
