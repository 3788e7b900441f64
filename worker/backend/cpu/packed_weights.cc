#include "worker/backend/cpu/packed_weights.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "kernels/cpu/layer_ops.h"
#include "kernels/cpu/matmul.h"

namespace ridge::worker {
namespace {

// Rows that a thread reads at a time: whole panels, a few hundred KiB.
constexpr int64_t kJobRows = 128;

// Of a packed matrix, so that the next one begins at a cache line.
int64_t PackedBytes(const PackedMatrix& matrix) {
  constexpr int64_t kLine = 64;
  const int64_t bytes = kernels::cpu::PackedSize(matrix.n, matrix.k) * static_cast<int64_t>(sizeof(Half));
  return (bytes + kLine - 1) / kLine * kLine;
}

// Appends a one-row tensor to `out` as floats.
absl::Status ReadVector(const WeightSource& source, TensorId id, std::vector<float>* out) {
  std::vector<Half> row(static_cast<size_t>(ShapeOf(source.config(), id).cols));
  if (absl::Status status = source.ReadRows(id, 0, 1, absl::MakeSpan(row)); !status.ok()) return status;
  const size_t begin = out->size();
  out->resize(begin + row.size());
  kernels::cpu::FromHalf(row.data(), static_cast<int64_t>(row.size()), out->data() + begin);
  return absl::OkStatus();
}

}  // namespace

// Some rows of a tensor and where they go.
struct PackedWeights::ReadJob {
  TensorId id;
  int64_t row_begin;
  int64_t row_count;
  PackedMatrix* to;
  int64_t to_row;  // of row_begin

  absl::Status Run(const WeightSource& source, std::vector<Half>* rows) const {
    rows->resize(static_cast<size_t>(row_count * to->k));
    absl::Status status = source.ReadRows(id, row_begin, row_count, absl::MakeSpan(*rows));
    if (status.ok()) kernels::cpu::PackRows(rows->data(), to_row, row_count, to->k, to->panels);
    return status;
  }
};

absl::StatusOr<PackedWeights> PackedWeights::Load(const WeightSource& source,
                                                  kernels::cpu::ThreadPool* pool) {
  const ModelConfig& config = source.config();
  PackedWeights weights;
  if (absl::Status status = weights.AllocateMatrices(config); !status.ok()) return status;
  if (absl::Status status = weights.ReadVectors(source); !status.ok()) return status;
  const std::vector<ReadJob> jobs = weights.MatrixJobs(config);

  std::atomic<size_t> next{0};
  std::mutex mutex;
  absl::Status first_error;
  pool->Run([&](int) {
    std::vector<Half> rows;
    for (size_t i; (i = next.fetch_add(1)) < jobs.size();) {
      const absl::Status status = jobs[i].Run(source, &rows);
      if (status.ok()) continue;
      std::lock_guard lock(mutex);
      first_error.Update(status);
      next = jobs.size();
    }
  });
  if (!first_error.ok()) return first_error;
  return weights;
}

absl::Status PackedWeights::AllocateMatrices(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size, mlp = config.mlp_size;
  layers_.resize(static_cast<size_t>(config.num_layers));
  std::vector<PackedMatrix*> matrices = {&embedding_};
  embedding_ = {config.vocab_size, hidden};
  for (PackedLayer& layer : layers_) {
    layer.qkv = {config.q_size() + 2 * config.kv_size(), hidden};
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
  return absl::OkStatus();
}

std::vector<PackedWeights::ReadJob> PackedWeights::MatrixJobs(const ModelConfig& config) {
  std::vector<ReadJob> jobs;
  const auto add = [&](TensorId id, PackedMatrix* to, int64_t to_row) {
    const int64_t rows = ShapeOf(config, id).rows;
    for (int64_t row = 0; row < rows; row += kJobRows) {
      jobs.push_back({id, row, std::min(kJobRows, rows - row), to, to_row + row});
    }
  };
  add({TensorRole::kTokenEmbedding}, &embedding_, 0);
  for (int32_t l = 0; l < config.num_layers; ++l) {
    PackedLayer& layer = layers_[static_cast<size_t>(l)];
    add({TensorRole::kQuery, l}, &layer.qkv, 0);
    add({TensorRole::kKey, l}, &layer.qkv, config.q_size());
    add({TensorRole::kValue, l}, &layer.qkv, config.q_size() + config.kv_size());
    add({TensorRole::kAttentionOutput, l}, &layer.attention_output, 0);
    add({TensorRole::kGate, l}, &layer.gate, 0);
    add({TensorRole::kUp, l}, &layer.up, 0);
    add({TensorRole::kDown, l}, &layer.down, 0);
  }
  if (!config.tied_embedding) add({TensorRole::kOutput}, &output_, 0);
  return jobs;
}

absl::Status PackedWeights::ReadVectors(const WeightSource& source) {
  absl::Status status = ReadVector(source, {TensorRole::kFinalNorm}, &final_norm_);
  for (int32_t l = 0; l < source.config().num_layers; ++l) {
    PackedLayer& layer = layers_[static_cast<size_t>(l)];
    status.Update(ReadVector(source, {TensorRole::kAttentionNorm, l}, &layer.attention_norm));
    status.Update(ReadVector(source, {TensorRole::kMlpNorm, l}, &layer.mlp_norm));
    if (source.config().qkv_bias) {
      for (TensorRole role : {TensorRole::kQueryBias, TensorRole::kKeyBias, TensorRole::kValueBias}) {
        status.Update(ReadVector(source, {role, l}, &layer.qkv_bias));
      }
    }
    if (source.config().qk_norm) {
      status.Update(ReadVector(source, {TensorRole::kQueryNorm, l}, &layer.query_norm));
      status.Update(ReadVector(source, {TensorRole::kKeyNorm, l}, &layer.key_norm));
    }
  }
  return status;
}

void PackedWeights::EmbeddingRow(int32_t token, float* out) const {
  constexpr int64_t kWidth = kernels::kPanelWidth;
  const Half* lane = embedding_.panels + token / kWidth * embedding_.k * kWidth + token % kWidth;
  for (int64_t i = 0; i < embedding_.k; ++i) out[i] = kernels::HalfToFloat(lane[i * kWidth]);
}

}  // namespace ridge::worker
