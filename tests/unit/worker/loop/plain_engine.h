// The plain reference of the default engine's decisions: who runs in the next step, with which rows and which
// blocks, who is preempted, what the prefix cache finds and what it loses next. Written from
// docs/contracts.md with lists that are searched from end to end, nothing kept that can be counted, so that
// the scheduler's and the pool's indexes and shortcuts have something to be wrong against.
//
// Of the policies only the default ones (memory on demand, continuous admission, chunks, fused steps), with
// or without a prefix cache. Every token of a request is known beforehand: that of its template.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "worker/decision/sequence.h"
#include "worker/loop/engine.h"

namespace ridge::worker {

// A plan as the reference knows it: sequences for slots.
struct PlainPlan {
  using Rows = std::tuple<SequenceId, int32_t, int32_t, int32_t>;  // first position, rows, outputs
  std::vector<Rows> rows;
  std::map<SequenceId, std::vector<BlockId>> blocks;  // new ones of each sequence's table
  std::vector<std::pair<BlockId, BlockId>> copies;

  bool operator==(const PlainPlan&) const = default;
};

class PlainEngine {
 public:
  explicit PlainEngine(const EngineConfig& config);

  // A request of choices with ids from `first` on, whose output will be `output`.
  void Add(SequenceId first, int32_t num_choices, const SequenceSpec& spec,
           const std::vector<TokenId>& output);
  void Cancel(SequenceId first);
  void Stop(SequenceId choice);

  // Whether it is a choice of that request, and did not end.
  bool IsOpen(SequenceId choice, SequenceId first) const {
    const auto it = items_.find(choice);
    return it != items_.end() && it->second.first == first && it->second.state != State::kFinished;
  }

  // What the engine's turn does at this time: the plans that it submits, then the end of the oldest step.
  std::vector<PlainPlan> Turn(int64_t now_ns);

  int32_t running() const { return Count(State::kRunning); }
  int32_t queued() const { return Count(State::kWaiting) + Count(State::kHeld); }
  int32_t available_blocks() const { return static_cast<int32_t>(free_.size() + idle_.size()); }
  int64_t preemptions() const { return preemptions_; }
  int64_t evictions() const { return evictions_; }
  int64_t found_tokens() const { return found_tokens_; }

 private:
  enum class State { kHeld, kWaiting, kRunning, kPreempted, kFinished };

  struct Item {
    SequenceId id;
    SequenceId first;  // of its request
    int32_t num_choices;
    SequenceSpec spec;
    std::vector<TokenId> tokens = {};  // the prompt and all that will be generated
    State state = State::kWaiting;
    bool has_slot = false;
    std::vector<BlockId> blocks = {};
    int32_t generated = 0;
    int32_t prefill = 0;    // known when it was admitted
    int32_t planned = 0;    // rows
    int32_t promised = 0;   // tokens once all steps are collected
    int32_t collected = 0;  // rows
    int32_t published = 0;  // blocks
    int64_t node = 0;       // of the last published one
    int32_t preemptions = 0;
    int64_t prefilled_ns = 0;  // the last rows of its prompt
    int32_t in_flight = 0;
    int64_t lends_from = -1;  // plan

    int32_t prompt() const { return static_cast<int32_t>(spec.prompt.size()); }
    int32_t known() const { return prompt() + generated; }
    bool is_prefilled() const { return planned >= prefill; }
    bool all_planned() const { return promised >= spec.max_tokens; }
    bool needs_block() const { return planned == static_cast<int32_t>(blocks.size()) * kBlockTokens; }
    bool is_protected() const { return preemptions >= 3; }
  };
  struct Step {
    std::vector<std::tuple<SequenceId, int32_t, int32_t>> rows;  // and outputs
  };
  // A block that the prefix cache knows.
  struct Node {
    int64_t id;
    int64_t parent;
    std::string salt;  // of the first of a chain
    std::vector<TokenId> tokens;
    BlockId block;
  };

  int32_t Count(State state) const;
  std::vector<Item*> Running();  // by priority, then age
  bool SomeWillFree();
  int32_t RunningOf(const std::string& tenant) const;
  bool HasSlot() const;

  PlainPlan Plan(int64_t now_ns);
  bool ReclaimSlot(int64_t now_ns);
  void PlanDecodes(PlainPlan* plan, Step* step);
  void PlanChunks(int64_t now_ns, PlainPlan* plan, Step* step);
  // Whether a tenant has more prompt tokens left than a step takes rows.
  bool Floods(const std::string& tenant) const;
  // Whether another choice of its request has the prompt, or will have it by the next plan.
  bool IsLent(const Item& item) const;
  void AddRows(Item* item, int32_t rows, int32_t outputs, PlainPlan* plan, Step* step);
  // Whether it may go before one that runs, as long as that has something of its prompt left.
  bool GoesBefore(const Item& waiting, const Item& running, int64_t now_ns) const;
  // `refused`: who came before and has to wait, or null.
  Item* NextWaiting(int64_t now_ns, const Item* refused);
  // The youngest of the tenant that runs most, at least two more than the item's; or null.
  Item* VictimFor(const Item& item, const std::set<SequenceId>& admitted);
  Item* NextPrefill(int64_t now_ns, const std::set<SequenceId>& planned);
  bool Admit(Item* item, const std::set<SequenceId>& admitted, int64_t now_ns, PlainPlan* plan);
  bool TakeBlocks(Item* item, PlainPlan* plan);
  void Collect();
  void Publish(Item* item);
  void Finish(Item* item);
  void Settle(Item* item);
  void Preempt(Item* item);
  void GiveBack(Item* item);
  void ReleaseChoices(SequenceId first);
  // Of the block that begins there.
  static std::vector<TokenId> Tokens(const Item& item, int32_t begin);

  std::vector<BlockId> TakeBlocks(int32_t count);
  // Forgets the nodes of these blocks, and what continues them: idle blocks of that are free.
  void Evict(std::set<BlockId> blocks);
  void ReleaseBlocks(const std::vector<BlockId>& blocks);
  void AddReader(BlockId block);
  const Node* FindNode(int64_t parent, const std::string& salt, const std::vector<TokenId>& tokens) const;
  bool IsKnown(int64_t node) const;

  void EnterTenant(const std::string& tenant);
  void LeaveTenant(const std::string& tenant);
  void ForgetEmptyLines();

  const EngineConfig config_;
  std::map<SequenceId, Item> items_;  // that were not settled
  std::deque<Step> in_flight_;
  int64_t plan_ = 0;
  std::set<SequenceId> releasing_;  // requests whose held choices wait from the next plan on
  std::set<SequenceId> planned_prompts_;
  int64_t preemptions_ = 0;
  int64_t evictions_ = 0;
  int64_t found_tokens_ = 0;

  std::vector<BlockId> free_;  // the last one goes first
  std::vector<BlockId> idle_;  // the first one goes first
  std::map<BlockId, int32_t> readers_;
  std::vector<Node> nodes_;
  int64_t last_node_ = 0;
  // Who lacked memory last, and how much: not looked at again before so much is there.
  SequenceId refused_ = 0;
  SequenceId claimant_ = 0;  // waits for what another tenant gives up
  int32_t refused_missing_ = 0;
  bool is_short_ = false;  // the last step, so that others' short prompts are done soon

  std::map<std::string, int64_t> served_;  // rows, by tenant
  int64_t most_served_ = 0;
  std::map<std::string, int32_t> active_;                           // sequences, by tenant
  std::map<std::pair<std::string, int32_t>, int64_t> admitted_ns_;  // of a tenant's class that waits
};

}  // namespace ridge::worker
