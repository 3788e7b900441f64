#include "worker/backend/cpu/forward_pass.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/layer_ops.h"
#include "kernels/cpu/matmul.h"

namespace ridge::worker {

namespace cpu = kernels::cpu;

static_assert(cpu::kKvBlockTokens == kBlockTokens);

ForwardPass::ForwardPass(const ModelConfig& config, const PackedWeights* weights, cpu::ThreadPool* pool,
                         KvPool kv, int32_t max_rows)
    : config_(config),
      weights_(*weights),
      pool_(*pool),
      kv_(std::move(kv)),
      rope_(kernels::MakeRopeTable(config.rope_theta, config.head_dim, config.rope_divisors,
                                   config.context_length)),
      threads_(static_cast<size_t>(pool->num_threads())) {
  const size_t rows = static_cast<size_t>(max_rows);
  const size_t hidden = static_cast<size_t>(config.hidden_size),
               q_size = static_cast<size_t>(config.q_size());
  residual_.resize(rows * hidden);
  normed_.resize(std::max<size_t>(rows, kLogitRows) * hidden);
  qkv_.resize(rows * static_cast<size_t>(config.q_size() + 2 * config.kv_size()));
  query_.resize(rows * q_size);
  attention_.resize(rows * q_size);
  gate_.resize(rows * static_cast<size_t>(config.mlp_size));
  up_.resize(rows * static_cast<size_t>(config.mlp_size));
  logits_.resize(static_cast<size_t>(std::min(max_rows, kLogitRows)) *
                 static_cast<size_t>(config.vocab_size));
  units_.reserve(rows * static_cast<size_t>(config.num_kv_heads));
  const int64_t group = config.num_heads / config.num_kv_heads;
  const int64_t attention =
      (2 * int64_t{kernels::kAttentionTile} + 2 * cpu::kMaxAttentionRows * group) * config.head_dim +
      kernels::kAttentionTile;
  for (ThreadState& state : threads_) state.scratch.resize(static_cast<size_t>(attention));
}

void ForwardPass::Run(const StepRows& rows) {
  const int64_t hidden = config_.hidden_size;
  ForEach(rows.num_rows(), [&](int64_t row, ThreadState&) {
    weights_.EmbeddingRow(rows.tokens[static_cast<size_t>(row)], residual_.data() + row * hidden);
  });
  PlanAttention(rows);
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    AttentionLayer(layer, rows);
    MlpLayer(layer, rows.num_rows());
  }
}

absl::Span<const float> ForwardPass::Logits(absl::Span<const OutputRow> outputs) {
  RIDGE_CHECK(outputs.size() <= static_cast<size_t>(kLogitRows));
  const int64_t hidden = config_.hidden_size;
  const int64_t count = static_cast<int64_t>(outputs.size());
  ForEach(count, [&](int64_t i, ThreadState& state) {
    cpu::RmsNorm(residual_.data() + outputs[static_cast<size_t>(i)].row * hidden,
                 weights_.final_norm().data(), config_.norm_eps, hidden, normed_.data() + i * hidden,
                 &state.saturations);
  });
  Multiply(weights_.output(), normed_.data(), nullptr, false, count, logits_.data());
  return absl::MakeConstSpan(logits_.data(), static_cast<size_t>(count * config_.vocab_size));
}

void ForwardPass::AttentionLayer(int32_t layer, const StepRows& rows) {
  const PackedLayer& weights = weights_.layers()[static_cast<size_t>(layer)];
  const std::vector<float>* bias = weights.qkv_bias.empty() ? nullptr : &weights.qkv_bias;
  Norm(weights.attention_norm, rows.num_rows());
  Multiply(weights.qkv, normed_.data(), bias, false, rows.num_rows(), qkv_.data());
  ForEach(rows.num_rows(), [&](int64_t row, ThreadState& state) { StoreKv(layer, rows, row, state); });
  pool_.Run([&](int thread) { Attend(layer, rows, thread); });
  Multiply(weights.attention_output, attention_.data(), nullptr, true, rows.num_rows(), residual_.data());
}

void ForwardPass::StoreKv(int32_t layer, const StepRows& rows, int64_t row, ThreadState& state) {
  const PackedLayer& weights = weights_.layers()[static_cast<size_t>(layer)];
  const int64_t d = config_.head_dim, q_size = config_.q_size(), kv_size = config_.kv_size();
  const int32_t position = rows.positions[static_cast<size_t>(row)];
  const float* cosines = rope_.cosines.data() + position * (d / 2);
  const float* sines = rope_.sines.data() + position * (d / 2);
  float* qkv = qkv_.data() + row * (q_size + 2 * kv_size);
  float* query = query_.data() + row * q_size;
  std::copy_n(qkv, q_size, query);
  for (int64_t head = 0; head < config_.num_heads; ++head) {
    if (config_.qk_norm) cpu::NormHead(weights.query_norm.data(), config_.norm_eps, d, query + head * d);
    cpu::RotateHead(cosines, sines, d, query + head * d, &state.saturations);
  }
  cpu::RoundRow(kv_size, qkv + q_size + kv_size, &state.saturations);
  const BlockId block =
      rows.slots[static_cast<size_t>(row)]->blocks[static_cast<size_t>(position / kBlockTokens)];
  Half* token = kv_.data() + block * kv_.block_stride() + position % kBlockTokens * d;
  for (int64_t head = 0; head < config_.num_kv_heads; ++head) {
    float* key = qkv + q_size + head * d;
    if (config_.qk_norm) cpu::NormHead(weights.key_norm.data(), config_.norm_eps, d, key);
    cpu::RotateHead(cosines, sines, d, key, &state.saturations);
    cpu::ToHalf(key, d, token + kv_.KeyOffset(layer, head));
    cpu::ToHalf(key + kv_size, d, token + kv_.ValueOffset(layer, head));
  }
}

void ForwardPass::PlanAttention(const StepRows& rows) {
  units_.clear();
  attention_cost_ = 0;
  for (size_t run = 0; run < rows.runs.size(); ++run) {
    const RowRun& r = rows.runs[run];
    for (int32_t row = 0; row < r.num_rows; row += cpu::kMaxAttentionRows) {
      const int32_t count = std::min(cpu::kMaxAttentionRows, r.num_rows - row);
      for (int32_t head = 0; head < config_.num_kv_heads; ++head) {
        units_.push_back({static_cast<int32_t>(run), row, count, head, attention_cost_});
        attention_cost_ += int64_t{count} * (r.first_position + row + count);
      }
    }
  }
}

// Takes the units that begin in this thread's share of the cost.
void ForwardPass::Attend(int32_t layer, const StepRows& rows, int thread) {
  const cpu::Share share = cpu::ShareOf(attention_cost_, thread, pool_.num_threads());
  const int64_t d = config_.head_dim, q_size = config_.q_size();
  const int32_t group = config_.num_heads / config_.num_kv_heads;
  ThreadState& state = threads_[static_cast<size_t>(thread)];
  for (const AttentionUnit& unit : units_) {
    if (unit.cost_before < share.begin || unit.cost_before >= share.end) continue;
    const RowRun& run = rows.runs[static_cast<size_t>(unit.run)];
    const int64_t offset = (run.first_row + unit.first_row) * q_size + int64_t{unit.head} * group * d;
    cpu::AttentionArgs args;
    args.q = query_.data() + offset;
    args.out = attention_.data() + offset;
    args.row_stride = q_size;
    args.num_rows = unit.num_rows;
    args.first_position = run.first_position + unit.first_row;
    args.group_size = group;
    args.head_dim = config_.head_dim;
    args.pool = kv_.data();
    args.block_table = run.slot->blocks.data();
    args.block_stride = kv_.block_stride();
    args.k_offset = kv_.KeyOffset(layer, unit.head);
    args.v_offset = kv_.ValueOffset(layer, unit.head);
    args.saturations = &state.saturations;
    cpu::Attention(args, &state.scratch);
  }
}

void ForwardPass::MlpLayer(int32_t layer, int64_t num_rows) {
  const PackedLayer& weights = weights_.layers()[static_cast<size_t>(layer)];
  const int64_t mlp = config_.mlp_size;
  Norm(weights.mlp_norm, num_rows);
  // A thread computes the same columns of gate and up, so that it can combine them without waiting for the
  // others.
  pool_.Run([&](int thread) {
    ThreadState& state = threads_[static_cast<size_t>(thread)];
    const cpu::Share panels = cpu::ShareOf(cpu::NumPanels(mlp), thread, pool_.num_threads());
    if (panels.begin == panels.end) return;
    cpu::MatmulArgs args{
        normed_.data(), weights.gate.panels, gate_.data(), num_rows, mlp, weights.gate.k, mlp};
    cpu::Matmul(args, panels.begin, panels.end);
    args.w = weights.up.panels;
    args.y = up_.data();
    cpu::Matmul(args, panels.begin, panels.end);
    const int64_t begin = panels.begin * kernels::kPanelWidth;
    const int64_t end = std::min(panels.end * kernels::kPanelWidth, mlp);
    for (int64_t row = 0; row < num_rows; ++row) {
      float* gate = gate_.data() + row * mlp + begin;
      cpu::SwiGlu(gate, up_.data() + row * mlp + begin, end - begin, gate, &state.saturations);
    }
  });
  Multiply(weights.down, gate_.data(), nullptr, true, num_rows, residual_.data());
}

void ForwardPass::Norm(const std::vector<float>& weight, int64_t num_rows) {
  const int64_t hidden = config_.hidden_size;
  ForEach(num_rows, [&](int64_t row, ThreadState& state) {
    cpu::RmsNorm(residual_.data() + row * hidden, weight.data(), config_.norm_eps, hidden,
                 normed_.data() + row * hidden, &state.saturations);
  });
}

void ForwardPass::ForEach(int64_t count, const std::function<void(int64_t, ThreadState&)>& task) {
  // Waking the others costs more than a row or two.
  if (count <= 2) {
    for (int64_t i = 0; i < count; ++i) task(i, threads_[0]);
    return;
  }
  pool_.Run([&](int thread) {
    const cpu::Share share = cpu::ShareOf(count, thread, pool_.num_threads());
    for (int64_t i = share.begin; i < share.end; ++i) task(i, threads_[static_cast<size_t>(thread)]);
  });
}

void ForwardPass::Multiply(const PackedMatrix& matrix, const float* x, const std::vector<float>* bias,
                           bool accumulate, int64_t num_rows, float* y) {
  const cpu::MatmulArgs args{x,         matrix.panels, y,        num_rows,
                             matrix.n,  matrix.k,      matrix.n, bias == nullptr ? nullptr : bias->data(),
                             accumulate};
  pool_.Run([&](int thread) {
    const cpu::Share panels = cpu::ShareOf(cpu::NumPanels(matrix.n), thread, pool_.num_threads());
    if (panels.begin == panels.end) return;
    cpu::Matmul(args, panels.begin, panels.end);
  });
}

int64_t ForwardPass::saturations() const {
  int64_t total = 0;
  for (const ThreadState& state : threads_) total += state.saturations;
  return total;
}

}  // namespace ridge::worker
