// Attention of a step's rows over the paged KV memory, which it owns.
//
// Threads: Plan is called once a step by the compute thread; Run by all threads of the pool together, layer
// by layer. What each thread takes is fixed by Plan and changes no bit. Few decode rows with a long context
// are shared out by chunks of keys unless attention is to be one pass, everything else by rows and KV heads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/rope_table.h"
#include "worker/backend/cpu/kv_pool.h"
#include "worker/backend/cpu/packed_weights.h"
#include "worker/backend/cpu/step_rows.h"
#include "worker/model/model_config.h"

namespace ridge::worker {

class PagedAttention {
 public:
  // `split`: whether a row's keys may be shared out. Else one thread takes all of a row and KV head.
  PagedAttention(const ModelConfig& config, kernels::cpu::ThreadPool* pool, KvPool kv, int32_t max_rows,
                 bool split);

  void Plan(const StepRows& rows);

  void CopyBlock(const BlockCopy& copy) { kv_.Copy(copy); }

  // Asks memory for the first keys that the thread will read in Run.
  void Prefetch(int32_t layer, const StepRows& rows, int thread) const;

  // Normalises and rotates q and k of qkv [rows][q | k | v] in place, writes K and V to their blocks, and
  // attends into out [rows][q_size]. Every thread of the pool calls it; `scratch` and `saturations` are its
  // own. The caller's barrier must follow.
  void Run(int32_t layer, const PackedLayer& weights, const StepRows& rows, int thread, float* qkv,
           float* out, float* scratch, int64_t* saturations);

  // Floats that each thread's scratch has to hold.
  int64_t ScratchSize() const;

 private:
  // Some rows of a run and one KV head.
  struct Unit {
    int32_t run;
    int32_t first_row;  // within the run
    int32_t num_rows;
    int32_t head;
  };
  // What one thread does at a time: a unit's chunk, or all of a unit.
  struct Item {
    int32_t unit;
    int32_t chunk;
    int64_t cost;         // keys times rows
    int64_t cost_before;  // of the items before
  };

  const RowRun& RunOf(const StepRows& rows, const Unit& unit) const {
    return rows.runs[static_cast<size_t>(unit.run)];
  }
  // Keys that a unit reads.
  int32_t NumKeys(const StepRows& rows, const Unit& unit) const;
  kernels::cpu::AttentionArgs ArgsOf(int32_t layer, const StepRows& rows, const Unit& unit, const float* qkv,
                                     float* out, int64_t* saturations) const;
  void StoreKv(int32_t layer, const PackedLayer& weights, const StepRows& rows, const Unit& unit, float* qkv,
               int64_t* saturations);
  // Where in a thread's scratch the results of rows are put that nobody wants.
  int64_t DroppedOffset() const;
  // Lists the units as items, whole or by chunks.
  void AddItems(const StepRows& rows, bool split);
  // Whether some thread's items cost much more than its share.
  bool IsLopsided() const;
  // The keys that an item reads first; nothing for null.
  kernels::cpu::KeyBlocks KeysOf(int32_t layer, const StepRows& rows, const Item* item) const;
  // Calls task(item, the one after it or null) for the items that begin in the thread's share of the cost.
  template <typename Task>
  void ForMyItems(int thread, const Task& task) const;
  float* PartialsOf(size_t unit) const;

  const ModelConfig config_;
  kernels::cpu::ThreadPool& pool_;
  const KvPool kv_;
  const kernels::RopeTable rope_;
  const int32_t group_;           // query heads of a KV head
  const size_t max_split_units_;  // more units than these are shared out whole; 0: all are

  std::vector<Unit> units_;
  std::vector<Item> items_;
  int64_t cost_ = 0;
  bool split_ = false;          // items are chunks
  bool rows_share_kv_ = false;  // some rows attend to what another unit stores

  int64_t partials_stride_ = 0;        // of a unit
  std::unique_ptr<float[]> partials_;  // [max_split_units_][chunk][group][PartialStride]
};

}  // namespace ridge::worker
