#include "worker/backend/cuda/cuda_weights.h"

#include <algorithm>
#include <array>

#include "kernels/cuda/packing.h"
#include "kernels/cuda/row_major.h"
#include "kernels/half.h"

namespace ridge::worker {
namespace {

using kernels::cuda::PackTarget;
using kernels::cuda::RowPlacement;

constexpr int64_t kStagingBytes = int64_t{16} << 20;
constexpr int64_t kAlignment = 256;

// Hands out consecutive pieces of memory from `base` on; null counts only.
class Places {
 public:
  explicit Places(char* base) : base_(base) {}

  template <typename T>
  T* Take(int64_t count) {
    T* place = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return place;
  }

  CudaMatrix TakeMatrix(int32_t n, int32_t k) { return {Take<Half>(kernels::cuda::PackedSize(n, k)), n, k}; }

  int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  int64_t bytes_ = 0;
};

}  // namespace

// Brings tensors to their places through two staging buffers: one is filled while the other is on its way.
class CudaWeights::Loader {
 public:
  Loader(const WeightSource& source, MatrixLayout layout, cudaStream_t stream)
      : source_(source), layout_(layout), stream_(stream) {}

  absl::Status Matrix(TensorId id, const CudaMatrix& to, int64_t row_begin, RowPlacement placement) {
    const TensorShape shape = ShapeOf(source_.config(), id);
    const PackTarget target = {to.packed, to.k, row_begin, placement, source_.config().head_dim};
    Half* const rows_begin = layout_ == MatrixLayout::kRowMajor ? to.packed + row_begin * to.k : nullptr;
    if (const std::optional<GeneratedTensor> tensor = source_.Generated(id); tensor.has_value()) {
      const kernels::cuda::SyntheticTensor synthetic = {tensor->key, tensor->scale, tensor->offset,
                                                        tensor->shift};
      return CudaStatus(
          rows_begin != nullptr
              ? kernels::cuda::LaunchGenerateRows(synthetic, shape.rows * shape.cols, rows_begin, stream_)
              : kernels::cuda::LaunchPackSynthetic(synthetic, shape.rows, target, stream_),
          "synthetic weights");
    }
    // Whole leaves of the fingerprint, which then needs no second pass over the file.
    constexpr int64_t kLeaf = WeightSource::kLeafRows;
    const int64_t batch = std::max<int64_t>(1, kStagingBytes / (shape.cols * 2) / kLeaf) * kLeaf;
    for (int64_t row = 0; row < shape.rows; row += batch) {
      const int64_t count = std::min(batch, shape.rows - row);
      absl::StatusOr<const Half*> rows = Upload(id, row, count, count * shape.cols);
      if (!rows.ok()) return rows.status();
      absl::Status status = CudaStatus(
          rows_begin != nullptr ? cudaMemcpyAsync(rows_begin + row * shape.cols, *rows,
                                                  static_cast<size_t>(count * shape.cols) * sizeof(Half),
                                                  cudaMemcpyDeviceToDevice, stream_)
                                : kernels::cuda::LaunchPackRows(*rows, row, count, target, stream_),
          "pack rows");
      status.Update(CudaStatus(cudaEventRecord(buffers_[next_].done.get(), stream_), "pack rows"));
      if (!status.ok()) return status;
      next_ = (next_ + 1) % buffers_.size();
    }
    return absl::OkStatus();
  }

  // A one-row tensor as floats, in the order of a matrix' packed rows.
  absl::Status Vector(TensorId id, float* to, RowPlacement placement = RowPlacement::kPlain) {
    std::vector<Half> halves(static_cast<size_t>(ShapeOf(source_.config(), id).cols));
    if (absl::Status status = source_.ReadRows(id, 0, 1, absl::MakeSpan(halves)); !status.ok()) return status;
    std::vector<float> floats(halves.size());
    for (size_t i = 0; i < halves.size(); ++i) {
      const int64_t row =
          kernels::cuda::PackedRow(placement, static_cast<int64_t>(i), source_.config().head_dim);
      floats[static_cast<size_t>(row)] = kernels::HalfToFloat(halves[i]);
    }
    return CopyToDevice(to, floats.data(), floats.size() * sizeof(float), "vectors", stream_);
  }

  absl::Status Finish() { return CudaStatus(cudaStreamSynchronize(stream_), "loading weights"); }

 private:
  struct Buffer {
    PinnedMemory host;
    DeviceMemory device;
    CudaEvent done;
  };

  // Starts the way of some rows to the next staging buffer, when that is free.
  absl::StatusOr<const Half*> Upload(TensorId id, int64_t row, int64_t count, int64_t size) {
    Buffer& buffer = buffers_[next_];
    const int64_t bytes = size * 2;
    if (buffer.done.get() != nullptr) {
      if (absl::Status status = CudaStatus(cudaEventSynchronize(buffer.done.get()), "loading weights");
          !status.ok())
        return status;
    }
    if (buffer.host.bytes() < bytes) {
      absl::StatusOr<PinnedMemory> host = PinnedMemory::Allocate(std::max(bytes, kStagingBytes), "staging");
      if (!host.ok()) return host.status();
      absl::StatusOr<DeviceMemory> device = DeviceMemory::Allocate(std::max(bytes, kStagingBytes), "staging");
      if (!device.ok()) return device.status();
      absl::StatusOr<CudaEvent> done = CudaEvent::Create();
      if (!done.ok()) return done.status();
      buffer = {*std::move(host), *std::move(device), *std::move(done)};
    }
    absl::Status status =
        source_.ReadRows(id, row, count, absl::MakeSpan(buffer.host.as<Half>(), static_cast<size_t>(size)));
    if (!status.ok()) return status;
    status = CudaStatus(cudaMemcpyAsync(buffer.device.as<void>(), buffer.host.as<void>(),
                                        static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
                        "loading weights");
    if (!status.ok()) return status;
    return buffer.device.as<Half>();
  }

  const WeightSource& source_;
  const MatrixLayout layout_;
  const cudaStream_t stream_;
  std::array<Buffer, 2> buffers_;
  size_t next_ = 0;
};

int64_t CudaWeights::Place(const ModelConfig& config, char* base) {
  Places places(base);
  const int32_t hidden = config.hidden_size, mlp = config.mlp_size;
  embedding_ = places.TakeMatrix(config.vocab_size, hidden);
  if (!config.tied_embedding) output_ = places.TakeMatrix(config.vocab_size, hidden);
  final_norm_ = places.Take<float>(hidden);
  layers_.resize(static_cast<size_t>(config.num_layers));
  for (CudaLayer& layer : layers_) {
    const int32_t qkv = config.q_size() + 2 * config.kv_size();
    layer.attention_norm = places.Take<float>(hidden);
    layer.qkv = places.TakeMatrix(qkv, hidden);
    layer.qkv_bias = config.qkv_bias ? places.Take<float>(qkv) : nullptr;
    layer.query_norm = config.qk_norm ? places.Take<float>(config.head_dim) : nullptr;
    layer.key_norm = config.qk_norm ? places.Take<float>(config.head_dim) : nullptr;
    layer.attention_output = places.TakeMatrix(hidden, config.q_size());
    layer.mlp_norm = places.Take<float>(hidden);
    layer.gate_up = places.TakeMatrix(2 * mlp, hidden);
    layer.down = places.TakeMatrix(hidden, mlp);
  }
  return places.bytes();
}

absl::StatusOr<CudaWeights> CudaWeights::Load(const WeightSource& source, cudaStream_t stream,
                                              MatrixLayout layout) {
  const ModelConfig& config = source.config();
  CudaWeights weights;
  weights.layout_ = layout;
  absl::StatusOr<DeviceMemory> memory = DeviceMemory::Allocate(weights.Place(config, nullptr), "weights");
  if (!memory.ok()) return memory.status();
  weights.memory_ = *std::move(memory);
  weights.Place(config, weights.memory_.as<char>());
  // Rows beyond a matrix' last tile must be zero.
  absl::Status status =
      CudaStatus(cudaMemsetAsync(weights.memory_.as<void>(), 0, static_cast<size_t>(weights.bytes()), stream),
                 "weights");

  Loader loader(source, layout, stream);
  const auto vector = [&](TensorId id, const float* to, RowPlacement placement = RowPlacement::kPlain) {
    if (status.ok()) status = loader.Vector(id, const_cast<float*>(to), placement);
  };
  const auto matrix = [&](TensorId id, const CudaMatrix& to, int64_t row_begin = 0,
                          RowPlacement placement = RowPlacement::kPlain) {
    if (status.ok()) status = loader.Matrix(id, to, row_begin, placement);
  };
  // The matmul's epilogue rotates pairs that stand together; a norm needs the whole head, and a kernel of its
  // own.
  const bool packed = layout == MatrixLayout::kPacked;
  const RowPlacement heads = packed && !config.qk_norm ? RowPlacement::kRotary : RowPlacement::kPlain;
  matrix({TensorRole::kTokenEmbedding}, weights.embedding_);
  if (!config.tied_embedding) matrix({TensorRole::kOutput}, weights.output_);
  vector({TensorRole::kFinalNorm}, weights.final_norm_);
  for (int32_t l = 0; l < config.num_layers; ++l) {
    const CudaLayer& layer = weights.layers_[static_cast<size_t>(l)];
    const int32_t q = config.q_size(), kv = config.kv_size();
    vector({TensorRole::kAttentionNorm, l}, layer.attention_norm);
    matrix({TensorRole::kQuery, l}, layer.qkv, 0, heads);
    matrix({TensorRole::kKey, l}, layer.qkv, q, heads);
    matrix({TensorRole::kValue, l}, layer.qkv, q + kv, heads);
    if (config.qkv_bias) {
      vector({TensorRole::kQueryBias, l}, layer.qkv_bias, heads);
      vector({TensorRole::kKeyBias, l}, layer.qkv_bias + q, heads);
      vector({TensorRole::kValueBias, l}, layer.qkv_bias + q + kv, heads);
    }
    if (config.qk_norm) {
      vector({TensorRole::kQueryNorm, l}, layer.query_norm);
      vector({TensorRole::kKeyNorm, l}, layer.key_norm);
    }
    matrix({TensorRole::kAttentionOutput, l}, layer.attention_output);
    vector({TensorRole::kMlpNorm, l}, layer.mlp_norm);
    matrix({TensorRole::kGate, l}, layer.gate_up, 0, packed ? RowPlacement::kGate : RowPlacement::kPlain);
    matrix({TensorRole::kUp, l}, layer.gate_up, packed ? 0 : config.mlp_size,
           packed ? RowPlacement::kUp : RowPlacement::kPlain);
    matrix({TensorRole::kDown, l}, layer.down);
  }
  if (status.ok()) status = loader.Finish();
  if (!status.ok()) return status;
  return weights;
}

}  // namespace ridge::worker
