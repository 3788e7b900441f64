#include "worker/backend/cpu/packed_weights.h"

#include <fstream>
#include <string>

#include "kernels/cpu/layer_ops.h"
#include "kernels/cpu/matmul.h"
#include "worker/model/weight_reader.h"

namespace ridge::worker {
namespace {

// Of a packed matrix, so that the next one begins at a cache line.
int64_t PackedBytes(const PackedMatrix& matrix) {
  constexpr int64_t kLine = 64;
  const int64_t bytes = kernels::cpu::PackedSize(matrix.n, matrix.k) * static_cast<int64_t>(sizeof(Half));
  return (bytes + kLine - 1) / kLine * kLine;
}

// Whether memory has several nodes, near to some cores and far from others.
bool HasSeveralNodes() {
  std::ifstream file("/sys/devices/system/node/online");
  std::string nodes;
  return file >> nodes && nodes != "0";
}

// Has each thread touch the panels that it will multiply with, which decides on whose node they lie.
void TouchShares(const std::vector<PackedMatrix*>& matrices, kernels::cpu::ThreadPool* pool) {
  constexpr int64_t kPage = 4096;
  pool->Run([&](int thread) {
    for (const PackedMatrix* matrix : matrices) {
      const int64_t panels = kernels::cpu::NumPanels(matrix->n);
      const int64_t panel_bytes = PackedBytes(*matrix) / panels;
      const auto share = kernels::cpu::ShareOf(panels, thread, pool->num_threads());
      char* base = reinterpret_cast<char*>(matrix->panels);
      for (int64_t at = share.begin * panel_bytes; at < share.end * panel_bytes; at += kPage) base[at] = 0;
    }
  });
}

void PutRows(const PackedMatrix& matrix, int64_t row_begin, absl::Span<const Half> rows) {
  const int64_t row_count = static_cast<int64_t>(rows.size()) / matrix.k;
  kernels::cpu::PackRows(rows.data(), row_begin, row_count, matrix.k, matrix.panels);
}

void PutVector(absl::Span<const Half> values, float* out) {
  kernels::cpu::FromHalf(values.data(), static_cast<int64_t>(values.size()), out);
}

}  // namespace

absl::StatusOr<PackedWeights> PackedWeights::Load(const WeightSource& source,
                                                  kernels::cpu::ThreadPool* pool) {
  PackedWeights weights;
  if (absl::Status status = weights.Allocate(source.config(), pool); !status.ok()) return status;
  absl::Status status =
      ReadWeights(source, pool, [&](TensorId id, int64_t row_begin, absl::Span<const Half> rows) {
        weights.Put(source.config(), id, row_begin, rows);
      });
  if (!status.ok()) return status;
  return weights;
}

absl::Status PackedWeights::Allocate(const ModelConfig& config, kernels::cpu::ThreadPool* pool) {
  const int64_t hidden = config.hidden_size, mlp = config.mlp_size;
  const size_t head_dim = static_cast<size_t>(config.head_dim);
  layers_.resize(static_cast<size_t>(config.num_layers));
  final_norm_.resize(static_cast<size_t>(hidden));
  std::vector<PackedMatrix*> matrices = {&embedding_};
  embedding_ = {config.vocab_size, hidden};
  for (PackedLayer& layer : layers_) {
    layer.attention_norm.resize(static_cast<size_t>(hidden));
    layer.mlp_norm.resize(static_cast<size_t>(hidden));
    layer.qkv = {config.q_size() + 2 * config.kv_size(), hidden};
    if (config.qkv_bias) layer.qkv_bias.resize(static_cast<size_t>(layer.qkv.n));
    if (config.qk_norm) {
      layer.query_norm.resize(head_dim);
      layer.key_norm.resize(head_dim);
    }
    layer.attention_output = {hidden, config.q_size()};
    layer.gate = layer.up = {mlp, hidden};
    layer.down = {hidden, mlp};
    matrices.insert(matrices.end(),
                    {&layer.qkv, &layer.attention_output, &layer.gate, &layer.up, &layer.down});
  }
  if (!config.tied_embedding) {
    output_ = {config.vocab_size, hidden};
    matrices.push_back(&output_);
  }

  int64_t total = 0;
  for (const PackedMatrix* matrix : matrices) total += PackedBytes(*matrix);
  absl::StatusOr<PageMemory> memory = PageMemory::Allocate(total);
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);
  char* next = memory_.as<char>();
  for (PackedMatrix* matrix : matrices) {
    matrix->panels = reinterpret_cast<Half*>(next);
    next += PackedBytes(*matrix);
  }
  if (HasSeveralNodes()) TouchShares(matrices, pool);
  return absl::OkStatus();
}

void PackedWeights::Put(const ModelConfig& config, TensorId id, int64_t row_begin,
                        absl::Span<const Half> rows) {
  PackedLayer& layer = layers_[static_cast<size_t>(id.layer)];
  const int64_t key_row = config.q_size(), value_row = key_row + config.kv_size();
  switch (id.role) {
    case TensorRole::kTokenEmbedding:
      return PutRows(embedding_, row_begin, rows);
    case TensorRole::kAttentionNorm:
      return PutVector(rows, layer.attention_norm.data());
    case TensorRole::kQuery:
      return PutRows(layer.qkv, row_begin, rows);
    case TensorRole::kKey:
      return PutRows(layer.qkv, key_row + row_begin, rows);
    case TensorRole::kValue:
      return PutRows(layer.qkv, value_row + row_begin, rows);
    case TensorRole::kQueryBias:
      return PutVector(rows, layer.qkv_bias.data());
    case TensorRole::kKeyBias:
      return PutVector(rows, layer.qkv_bias.data() + key_row);
    case TensorRole::kValueBias:
      return PutVector(rows, layer.qkv_bias.data() + value_row);
    case TensorRole::kQueryNorm:
      return PutVector(rows, layer.query_norm.data());
    case TensorRole::kKeyNorm:
      return PutVector(rows, layer.key_norm.data());
    case TensorRole::kAttentionOutput:
      return PutRows(layer.attention_output, row_begin, rows);
    case TensorRole::kMlpNorm:
      return PutVector(rows, layer.mlp_norm.data());
    case TensorRole::kGate:
      return PutRows(layer.gate, row_begin, rows);
    case TensorRole::kUp:
      return PutRows(layer.up, row_begin, rows);
    case TensorRole::kDown:
      return PutRows(layer.down, row_begin, rows);
    case TensorRole::kFinalNorm:
      return PutVector(rows, final_norm_.data());
    case TensorRole::kOutput:
      return PutRows(output_, row_begin, rows);
  }
}

void PackedWeights::EmbeddingRow(int32_t token, float* out) const {
  constexpr int64_t kWidth = kernels::kPanelWidth;
  const Half* lane = embedding_.panels + token / kWidth * embedding_.k * kWidth + token % kWidth;
  for (int64_t i = 0; i < embedding_.k; ++i) out[i] = kernels::HalfToFloat(lane[i * kWidth]);
}

}  // namespace ridge::worker
