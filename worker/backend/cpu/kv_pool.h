// The KV memory: blocks of 16 tokens of all layers, laid out [block][layer][kv head][K|V] fp16: what one
// thread reads stands together. Values are [16][head_dim], keys [head_dim][16], so that a score's lanes run
// along the keys (kernels/cpu/attention.h).
//
// Zeroed once, when it is allocated. Written by the threads of a step, each its own rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/backend/cpu/page_memory.h"
#include "worker/backend/step_plan.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

class KvPool {
 public:
  static int64_t BlockBytes(const ModelConfig& config) { return config.kv_bytes_per_token() * kBlockTokens; }

  static absl::StatusOr<KvPool> Allocate(const ModelConfig& config, int32_t num_blocks) {
    absl::StatusOr<PageMemory> memory = PageMemory::Allocate(BlockBytes(config) * num_blocks);
    if (!memory.ok()) return memory.status();
    return KvPool(config, num_blocks, *std::move(memory));
  }

  Half* data() const { return memory_.as<Half>(); }

  void Copy(const BlockCopy& copy) const {
    std::copy_n(data() + copy.from * block_stride_, block_stride_, data() + copy.to * block_stride_);
  }

  // No sequence gets longer: what a model's context promises beyond it needs no memory anywhere.
  int64_t max_positions() const { return max_positions_; }

  // All in elements. A block's keys of one layer and KV head start at KeyOffset, its values at ValueOffset.
  int64_t block_stride() const { return block_stride_; }
  int64_t KeyOffset(int64_t layer, int64_t head) const { return 2 * (layer * heads_ + head) * head_stride_; }
  int64_t ValueOffset(int64_t layer, int64_t head) const { return KeyOffset(layer, head) + head_stride_; }

 private:
  KvPool(const ModelConfig& config, int32_t num_blocks, PageMemory memory)
      : max_positions_(std::min<int64_t>(config.context_length, int64_t{num_blocks} * kBlockTokens)),
        heads_(config.num_kv_heads),
        head_stride_(int64_t{kBlockTokens} * config.head_dim),
        block_stride_(2 * config.num_layers * heads_ * head_stride_),
        memory_(std::move(memory)) {}

  int64_t max_positions_;
  int64_t heads_;
  int64_t head_stride_;
  int64_t block_stride_;
  PageMemory memory_;
};

}  // namespace ridge::worker
