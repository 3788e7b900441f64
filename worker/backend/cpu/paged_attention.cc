#include "worker/backend/cpu/paged_attention.h"

#include <algorithm>

#include "kernels/cpu/layer_ops.h"
#include "kernels/order.h"

namespace ridge::worker {

namespace cpu = kernels::cpu;

static_assert(cpu::kKvBlockTokens == kBlockTokens);

PagedAttention::PagedAttention(const ModelConfig& config, cpu::ThreadPool* pool, KvPool kv, int32_t max_rows,
                               bool split)
    : config_(config),
      pool_(*pool),
      kv_(std::move(kv)),
      rope_(kernels::MakeRopeTable(config.rope_theta, config.head_dim, config.rope_divisors,
                                   kv_.max_positions())),
      group_(config.num_heads / config.num_kv_heads),
      max_split_units_(split ? 4 * static_cast<size_t>(pool->num_threads()) : 0) {
  const size_t units = static_cast<size_t>(max_rows) * static_cast<size_t>(config.num_kv_heads);
  const int64_t max_chunks = (kv_.max_positions() + kernels::kAttentionChunk - 1) / kernels::kAttentionChunk;
  units_.reserve(units);
  items_.reserve(std::max(units, max_split_units_ * static_cast<size_t>(max_chunks)));
  partials_stride_ = max_chunks * group_ * cpu::PartialStride(config.head_dim);
  // Not touched until it is used.
  partials_.reset(new float[max_split_units_ * static_cast<size_t>(partials_stride_)]);
}

int64_t PagedAttention::ScratchSize() const {
  return DroppedOffset() + int64_t{group_} * config_.head_dim;
}

int64_t PagedAttention::DroppedOffset() const {
  return cpu::AttentionScratch(int64_t{cpu::kMaxAttentionRows} * group_, config_.head_dim);
}

template <typename Task>
void PagedAttention::ForMyItems(int thread, const Task& task) const {
  const cpu::Share share = cpu::ShareOf(cost_, thread, pool_.num_threads());
  const auto before = [](const Item& item, int64_t cost) { return item.cost_before < cost; };
  auto item = std::lower_bound(items_.begin(), items_.end(), share.begin, before);
  const auto end = std::lower_bound(item, items_.end(), share.end, before);
  for (; item != end; ++item) task(*item, item + 1 == end ? nullptr : &item[1]);
}

void PagedAttention::Plan(const StepRows& rows) {
  units_.clear();
  rows_share_kv_ = false;
  bool decode = true;
  for (size_t i = 0; i < rows.runs.size(); ++i) {
    const RowRun& run = rows.runs[i];
    rows_share_kv_ |= run.num_rows > cpu::kMaxAttentionRows;
    decode &= run.num_rows == 1;
    for (int32_t row = 0; row < run.num_rows; row += cpu::kMaxAttentionRows) {
      const int32_t count = std::min(cpu::kMaxAttentionRows, run.num_rows - row);
      for (int32_t head = 0; head < config_.num_kv_heads; ++head) {
        units_.push_back({static_cast<int32_t>(i), row, count, head});
      }
    }
  }
  AddItems(rows, false);
  split_ = decode && units_.size() <= max_split_units_ && IsLopsided();
  if (split_) AddItems(rows, true);
}

void PagedAttention::AddItems(const StepRows& rows, bool split) {
  items_.clear();
  cost_ = 0;
  for (size_t i = 0; i < units_.size(); ++i) {
    const int32_t keys = NumKeys(rows, units_[i]);
    const int32_t step = split ? kernels::kAttentionChunk : keys;
    for (int32_t begin = 0; begin < keys; begin += step) {
      const int64_t cost = int64_t{units_[i].num_rows} * std::min(step, keys - begin);
      items_.push_back({static_cast<int32_t>(i), begin / step, cost, cost_});
      cost_ += cost;
    }
  }
}

int32_t PagedAttention::NumKeys(const StepRows& rows, const Unit& unit) const {
  const RowRun& run = RunOf(rows, unit);
  return std::max(run.first_position + unit.first_row + unit.num_rows, run.padded_keys);
}

bool PagedAttention::IsLopsided() const {
  const int64_t fair = cost_ / pool_.num_threads();
  for (int thread = 0; thread < pool_.num_threads(); ++thread) {
    int64_t cost = 0;
    ForMyItems(thread, [&](const Item& item, const Item*) { cost += item.cost; });
    // Two more barriers take as long as some keys.
    constexpr int64_t kBarrierKeys = kernels::kAttentionChunk / 2;
    if (cost > fair + fair / 8 + kBarrierKeys) return true;
  }
  return false;
}

void PagedAttention::Run(int32_t layer, const PackedLayer& weights, const StepRows& rows, int thread,
                         float* qkv, float* out, float* scratch, int64_t* saturations) {
  int64_t dropped = 0;
  const auto args_of = [&](const Unit& unit) {
    cpu::AttentionArgs args = ArgsOf(layer, rows, unit, qkv, out, saturations);
    if (!RunOf(rows, unit).dropped) return args;
    args.out = scratch + DroppedOffset();
    args.saturations = &dropped;
    return args;
  };
  if (!split_) {
    ForMyItems(thread, [&](const Item& item, const Item*) {
      StoreKv(layer, weights, rows, units_[static_cast<size_t>(item.unit)], qkv, saturations);
    });
    if (rows_share_kv_) pool_.Barrier();
    ForMyItems(thread, [&](const Item& item, const Item* next) {
      cpu::AttentionArgs args = args_of(units_[static_cast<size_t>(item.unit)]);
      args.next = KeysOf(layer, rows, next);
      cpu::Attention(args, scratch);
    });
    return;
  }
  const cpu::Share units = cpu::ShareOf(static_cast<int64_t>(units_.size()), thread, pool_.num_threads());
  for (size_t i = static_cast<size_t>(units.begin); i < static_cast<size_t>(units.end); ++i) {
    StoreKv(layer, weights, rows, units_[i], qkv, saturations);
  }
  pool_.Barrier();
  ForMyItems(thread, [&](const Item& item, const Item* next) {
    const size_t unit = static_cast<size_t>(item.unit);
    cpu::AttentionArgs args = args_of(units_[unit]);
    args.next = KeysOf(layer, rows, next);
    const int64_t size = args.num_states() * cpu::PartialStride(args.head_dim);
    cpu::AttentionChunk(args, item.chunk, PartialsOf(unit) + item.chunk * size, scratch);
  });
  pool_.Barrier();
  for (size_t i = static_cast<size_t>(units.begin); i < static_cast<size_t>(units.end); ++i) {
    cpu::FoldChunks(args_of(units_[i]), PartialsOf(i));
  }
}

void PagedAttention::Prefetch(int32_t layer, const StepRows& rows, int thread) const {
  const Item* first = nullptr;
  ForMyItems(thread, [&](const Item& item, const Item*) { first = first == nullptr ? &item : first; });
  cpu::PrefetchKeys(kv_.data(), kv_.block_stride(), config_.head_dim, KeysOf(layer, rows, first));
}

cpu::KeyBlocks PagedAttention::KeysOf(int32_t layer, const StepRows& rows, const Item* item) const {
  if (item == nullptr) return {};
  const Unit& unit = units_[static_cast<size_t>(item->unit)];
  return cpu::KeysOfChunk(ArgsOf(layer, rows, unit, nullptr, nullptr, nullptr), item->chunk);
}

float* PagedAttention::PartialsOf(size_t unit) const {
  return partials_.get() + static_cast<int64_t>(unit) * partials_stride_;
}

cpu::AttentionArgs PagedAttention::ArgsOf(int32_t layer, const StepRows& rows, const Unit& unit,
                                          const float* qkv, float* out, int64_t* saturations) const {
  const RowRun& run = RunOf(rows, unit);
  const int64_t row = run.first_row + unit.first_row;
  const int64_t head_offset = int64_t{unit.head} * group_ * config_.head_dim;
  cpu::AttentionArgs args;
  args.q_stride = config_.q_size() + 2 * config_.kv_size();
  args.out_stride = config_.q_size();
  args.q = qkv + row * args.q_stride + head_offset;
  args.out = out + row * args.out_stride + head_offset;
  args.num_rows = unit.num_rows;
  args.first_position = run.first_position + unit.first_row;
  args.group_size = group_;
  args.head_dim = config_.head_dim;
  args.pool = kv_.data();
  args.block_table = run.slot->blocks.data();
  args.block_stride = kv_.block_stride();
  args.k_offset = kv_.KeyOffset(layer, unit.head);
  args.v_offset = kv_.ValueOffset(layer, unit.head);
  args.saturations = saturations;
  args.padded_keys = run.padded_keys;
  return args;
}

void PagedAttention::StoreKv(int32_t layer, const PackedLayer& weights, const StepRows& rows,
                             const Unit& unit, float* qkv, int64_t* saturations) {
  const RowRun& run = RunOf(rows, unit);
  if (run.dropped) return;
  const int64_t d = config_.head_dim, q_size = config_.q_size(), kv_size = config_.kv_size();
  for (int32_t i = unit.first_row; i < unit.first_row + unit.num_rows; ++i) {
    const int64_t position = run.first_position + i;
    const float* cosines = rope_.cosines.data() + position * (d / 2);
    const float* sines = rope_.sines.data() + position * (d / 2);
    float* row = qkv + (run.first_row + i) * (q_size + 2 * kv_size);
    for (int64_t head = int64_t{unit.head} * group_; head < int64_t{unit.head + 1} * group_; ++head) {
      if (config_.qk_norm) cpu::NormHead(weights.query_norm.data(), config_.norm_eps, d, row + head * d);
      cpu::RotateHead(cosines, sines, d, row + head * d, saturations);
    }
    float* key = row + q_size + unit.head * d;
    float* value = key + kv_size;
    if (config_.qk_norm) cpu::NormHead(weights.key_norm.data(), config_.norm_eps, d, key);
    cpu::RotateHead(cosines, sines, d, key, saturations);
    cpu::RoundRow(d, value, saturations);
    const int64_t token = position % kBlockTokens;
    Half* block =
        kv_.data() + run.slot->blocks[static_cast<size_t>(position / kBlockTokens)] * kv_.block_stride();
    cpu::ToHalfStrided(key, d, kBlockTokens, block + kv_.KeyOffset(layer, unit.head) + token);
    cpu::ToHalf(value, d, block + kv_.ValueOffset(layer, unit.head) + token * d);
  }
}

}  // namespace ridge::worker
