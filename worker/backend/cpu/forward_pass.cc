#include "worker/backend/cpu/forward_pass.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/cpu/layer_ops.h"
#include "kernels/cpu/matmul.h"

namespace ridge::worker {

namespace cpu = kernels::cpu;

ForwardPass::ForwardPass(const ModelConfig& config, const PackedWeights* weights, cpu::ThreadPool* pool,
                         KvPool kv, int32_t max_rows, bool split_attention)
    : config_(config),
      weights_(*weights),
      pool_(*pool),
      attention_(config, pool, std::move(kv), max_rows, split_attention),
      threads_(static_cast<size_t>(pool->num_threads())) {
  const size_t rows = static_cast<size_t>(max_rows);
  const size_t hidden = static_cast<size_t>(config.hidden_size), mlp = static_cast<size_t>(config.mlp_size);
  residual_.resize(rows * hidden);
  normed_.resize(std::max<size_t>(rows, kLogitRows) * hidden);
  qkv_.resize(rows * static_cast<size_t>(config.q_size() + 2 * config.kv_size()));
  attended_.resize(rows * static_cast<size_t>(config.q_size()));
  gate_.resize(rows * mlp);
  up_.resize(rows * mlp);
  logits_.resize(static_cast<size_t>(std::min(max_rows, kLogitRows)) *
                 static_cast<size_t>(config.vocab_size));
  const int64_t scratch =
      std::max({attention_.ScratchSize(), cpu::MatmulScratch(config.hidden_size),
                cpu::MatmulScratch(config.q_size()), cpu::MatmulScratch(config.mlp_size)});
  for (ThreadState& thread : threads_) {
    thread.scratch.resize(static_cast<size_t>(scratch));
    thread.normed.resize(static_cast<size_t>(kFewRows) * hidden);
  }
}

void ForwardPass::Run(const StepRows& rows) {
  attention_.Plan(rows);
  // Attention leaves padded rows alone: no values of earlier steps in them.
  const int64_t first_padded = rows.num_rows() - rows.num_padded;
  std::fill(attended_.begin() + first_padded * config_.q_size(),
            attended_.begin() + rows.num_rows() * int64_t{config_.q_size()}, 0.0f);
  pool_.Run([&](int thread) { RunThread(rows, thread); });
}

void ForwardPass::RunThread(const StepRows& rows, int thread) {
  const cpu::Share share = cpu::ShareOf(rows.num_rows(), thread, pool_.num_threads());
  for (int64_t row = share.begin; row < share.end; ++row) {
    weights_.EmbeddingRow(rows.tokens[static_cast<size_t>(row)],
                          residual_.data() + row * config_.hidden_size);
  }
  pool_.Barrier();
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    AttentionLayer(layer, rows, thread);
    MlpLayer(layer, rows.num_rows(), thread);
  }
}

absl::Span<const float> ForwardPass::Logits(absl::Span<const OutputRow> outputs) {
  RIDGE_CHECK(outputs.size() <= static_cast<size_t>(kLogitRows));
  const int64_t count = static_cast<int64_t>(outputs.size());
  pool_.Run([&](int thread) {
    const float* x = Norm(weights_.final_norm(), count, thread, [&](int64_t i) {
      return residual_.data() + outputs[static_cast<size_t>(i)].row * int64_t{config_.hidden_size};
    });
    Multiply(weights_.output(), x, nullptr, false, count, logits_.data(), thread, nullptr);
  });
  return absl::MakeConstSpan(logits_.data(), static_cast<size_t>(count * config_.vocab_size));
}

void ForwardPass::AttentionLayer(int32_t layer, const StepRows& rows, int thread) {
  const PackedLayer& weights = weights_.layers()[static_cast<size_t>(layer)];
  const std::vector<float>* bias = weights.qkv_bias.empty() ? nullptr : &weights.qkv_bias;
  const float* x = NormResidual(weights.attention_norm, rows.num_rows(), thread);
  Multiply(weights.qkv, x, bias, false, rows.num_rows(), qkv_.data(), thread, nullptr);
  attention_.Prefetch(layer, rows, thread);
  pool_.Barrier();
  attention_.Run(layer, weights, rows, thread, qkv_.data(), attended_.data(), state(thread).scratch.data(),
                 &state(thread).saturations);
  PrefetchPanels(weights.attention_output, thread);
  pool_.Barrier();
  Multiply(weights.attention_output, attended_.data(), nullptr, true, rows.num_rows(), residual_.data(),
           thread, &weights.gate);
  pool_.Barrier();
}

void ForwardPass::MlpLayer(int32_t layer, int64_t num_rows, int thread) {
  const PackedLayer& weights = weights_.layers()[static_cast<size_t>(layer)];
  const int64_t mlp = config_.mlp_size;
  const float* x = NormResidual(weights.mlp_norm, num_rows, thread);
  Multiply(weights.gate, x, nullptr, false, num_rows, gate_.data(), thread, nullptr);
  Multiply(weights.up, x, nullptr, false, num_rows, up_.data(), thread, &weights.down);
  // A thread has the same columns of gate and up, so that it can combine them without waiting for the others.
  const cpu::Share panels = cpu::ShareOf(cpu::NumPanels(mlp), thread, pool_.num_threads());
  const int64_t begin = panels.begin * kernels::kPanelWidth;
  const int64_t end = std::min(panels.end * kernels::kPanelWidth, mlp);
  for (int64_t row = 0; row < num_rows; ++row) {
    float* gate = gate_.data() + row * mlp + begin;
    cpu::SwiGlu(gate, up_.data() + row * mlp + begin, end - begin, gate, &state(thread).saturations);
  }
  pool_.Barrier();
  Multiply(weights.down, gate_.data(), nullptr, true, num_rows, residual_.data(), thread,
           layer + 1 < config_.num_layers ? &weights_.layers()[static_cast<size_t>(layer) + 1].qkv
                                          : &weights_.output());
  pool_.Barrier();
}

const float* ForwardPass::Norm(const std::vector<float>& weight, int64_t num_rows, int thread,
                               absl::FunctionRef<const float*(int64_t)> row_at) {
  const int64_t hidden = config_.hidden_size;
  const bool few = num_rows <= kFewRows;
  float* out = few ? state(thread).normed.data() : normed_.data();
  const cpu::Share share =
      few ? cpu::Share{0, num_rows} : cpu::ShareOf(num_rows, thread, pool_.num_threads());
  for (int64_t i = share.begin; i < share.end; ++i) {
    cpu::RmsNorm(row_at(i), weight.data(), config_.norm_eps, hidden, out + i * hidden,
                 &state(thread).saturations);
  }
  if (!few) pool_.Barrier();
  return out;
}

const float* ForwardPass::NormResidual(const std::vector<float>& weight, int64_t num_rows, int thread) {
  return Norm(weight, num_rows, thread,
              [&](int64_t row) { return residual_.data() + row * config_.hidden_size; });
}

void ForwardPass::Multiply(const PackedMatrix& matrix, const float* x, const std::vector<float>* bias,
                           bool accumulate, int64_t num_rows, float* y, int thread,
                           const PackedMatrix* next) {
  const cpu::MatmulArgs args{x,         matrix.panels, y,        num_rows,
                             matrix.n,  matrix.k,      matrix.n, bias == nullptr ? nullptr : bias->data(),
                             accumulate};
  const cpu::Share panels = cpu::ShareOf(cpu::NumPanels(matrix.n), thread, pool_.num_threads());
  cpu::Matmul(args, panels.begin, panels.end, state(thread).scratch.data());
  if (next != nullptr) PrefetchPanels(*next, thread);
}

void ForwardPass::PrefetchPanels(const PackedMatrix& matrix, int thread) {
  const cpu::Share panels = cpu::ShareOf(cpu::NumPanels(matrix.n), thread, pool_.num_threads());
  cpu::PrefetchPanels(matrix.panels, matrix.k, panels.begin);
}

int64_t ForwardPass::saturations() const {
  int64_t total = 0;
  for (const ThreadState& thread : threads_) total += thread.saturations;
  return total;
}

}  // namespace ridge::worker
