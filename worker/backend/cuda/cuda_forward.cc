#include "worker/backend/cuda/cuda_forward.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/rms_norm.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/silu_mul.h"
#include "kernels/cuda/slot_changes.h"

namespace ridge::worker {
namespace {

namespace cuda = kernels::cuda;

static_assert(cuda::kKvBlockTokens == kBlockTokens);

// Partial results of attention that a step may have, and tiles whose keys are shared among blocks.
constexpr int32_t kMaxPartials = 4096;
constexpr int32_t kMaxSharedTiles = 4096;

template <typename T>
const T* At(const char* upload, int64_t offset) {
  return reinterpret_cast<const T*>(upload + offset);
}

}  // namespace

CudaForward::CudaForward(const ModelConfig& config, const CudaWeights* weights, CublasLt* cublas,
                         const cuda::DeviceInfo& device)
    : config_(config),
      weights_(*weights),
      cublas_(cublas),
      device_(cuda::MatmulDeviceOf(device)),
      logit_stride_((config.vocab_size + 3) / 4 * 4),
      attention_limits_{config.num_heads, config.num_kv_heads, config.head_dim, device.num_sms, 0,
                        kMaxPartials,     kMaxSharedTiles} {}

absl::StatusOr<std::unique_ptr<CudaForward>> CudaForward::Create(
    const ModelConfig& config, const CudaWeights* weights, CublasLt* cublas, const cuda::DeviceInfo& device,
    const BackendLimits& limits, bool split_attention, bool decode_layers, cudaStream_t stream) {
  std::unique_ptr<CudaForward> forward(new CudaForward(config, weights, cublas, device));
  absl::Status status = CudaStatus(cuda::PrepareMatmul(), "matmul");
  status.Update(CudaStatus(
      cuda::AttentionSplitBlocks(config.head_dim, device.num_sms, &forward->attention_limits_.split_blocks),
      "attention"));
  forward->attention_limits_.one_pass = !split_attention;
  forward->attention_limits_.has_wgmma = forward->device_.has_wgmma;
  if (split_attention) forward->LimitChunks();
  if (status.ok()) status = forward->Allocate(limits, stream);
  if (status.ok() && cublas == nullptr && decode_layers) {
    absl::StatusOr<DecodeLayers> layers = DecodeLayers::Create(config, *weights, device, stream);
    if (!layers.ok()) return layers.status();
    forward->decode_layers_ = *std::move(layers);
  }
  if (status.ok() && cublas == nullptr) {
    absl::StatusOr<Mlp> mlp = Mlp::Create(config, forward->device_, stream);
    if (!mlp.ok()) return mlp.status();
    forward->mlp_ = *std::move(mlp);
  }
  if (!status.ok()) return status;
  return forward;
}

void CudaForward::LimitChunks() {
  if (cuda::AttentionChunkSharedBytes(config_.head_dim) > device_.shared_bytes_per_block) return;
  attention_limits_.chunk_blocks = device_.num_sms / config_.num_kv_heads * config_.num_kv_heads;
  const CudaMatrix& matrix = weights_.layers().front().attention_output;
  const cuda::MatmulPlan plan = cuda::PlanMatmul(1, matrix.n, matrix.k, device_);
  if (cublas_ == nullptr && cuda::TakesUnmerged(plan, matrix.k, config_.head_dim))
    attention_limits_.max_unmerged = cuda::kMaxUnmerged;
}

void CudaForward::TakeLaunches(std::vector<const char*>* to) {
  to->clear();
  to->swap(launches_);
}

void CudaForward::Check(cudaError_t error, const char* kernel) {
  launches_.push_back(kernel);
  if (status_.ok()) status_ = CudaStatus(error, kernel);
}

absl::Status CudaForward::ApplyChanges(const StepLayout& layout, const char* upload, cudaStream_t stream) {
  cuda::SlotChangesArgs args{};
  args.sampling_changes = At<cuda::SamplingChange>(upload, layout.sampling_changes);
  args.num_sampling_changes = layout.sampling_change_count;
  args.block_changes = At<cuda::BlockChange>(upload, layout.block_changes);
  args.num_block_changes = layout.block_change_count;
  args.slots = slot_sampling_.as<cuda::SlotSampling>();
  args.block_tables = block_tables_.as<int32_t>();
  args.table_stride = table_stride_;
  if (args.num_sampling_changes + args.num_block_changes > 0) launches_.push_back("slot changes");
  return CudaStatus(cuda::LaunchSlotChanges(args, stream), "slot changes");
}

absl::Status CudaForward::CopyBlocks(const StepPlan& plan, cudaStream_t stream) {
  const int64_t bytes = config_.kv_bytes_per_token() * kBlockTokens;
  absl::Status status;
  for (const BlockCopy& copy : plan.copies) {
    launches_.push_back("block copy");
    status.Update(CudaStatus(
        cudaMemcpyAsync(kv_pool_.as<char>() + copy.to * bytes, kv_pool_.as<char>() + copy.from * bytes,
                        static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream),
        "block copy"));
  }
  return status;
}

absl::Status CudaForward::Run(const StepLayout& layout, const char* upload, char* results, float* host_logits,
                              cudaStream_t stream) {
  status_ = absl::OkStatus();
  results_ = results;
  num_partials_ = 0;
  if (decode_layers_.Takes(layout)) {
    const auto kv = [&](int32_t layer) {
      return cuda::KvLayerOf(kv_pool_.as<Half>(), config_.num_layers, layer, config_.num_kv_heads,
                             config_.head_dim);
    };
    Check(decode_layers_.Launch(layout, upload, RopeKv(layout, upload, kv(0)),
                                kv(1).key_offset - kv(0).key_offset, last_tokens_.as<int32_t>(),
                                residual_.as<float>(), stream),
          "decode layers");
  } else {
    Layers(layout, upload, stream);
  }
  Logits(layout, upload, host_logits, stream);
  return status_;
}

void CudaForward::Layers(const StepLayout& layout, const char* upload, cudaStream_t stream) {
  const int32_t rows = layout.num_rows;
  Check(cuda::LaunchEmbedding(
            {At<int32_t>(upload, layout.tokens), last_tokens_.as<int32_t>(), weights_.embedding().packed,
             residual_.as<float>(), rows, config_.hidden_size, weights_.layout() == MatrixLayout::kRowMajor},
            stream),
        "embedding");
  for (int32_t l = 0; l < config_.num_layers; ++l) {
    const CudaLayer& layer = weights_.layers()[static_cast<size_t>(l)];
    const cuda::KvLayer kv =
        cuda::KvLayerOf(kv_pool_.as<Half>(), config_.num_layers, l, config_.num_kv_heads, config_.head_dim);
    Qkv(layout, upload, layer, kv, stream);
    Attention(layout, upload, kv, stream);
    if (layout.attention != cuda::AttentionMode::kUnmerged && mlp_.Takes(rows)) {
      BehindAttention(layer, rows, stream);
      continue;
    }
    cuda::MatmulArgs args{};
    args.output = cuda::MatmulOutput::kResidual;
    args.y = residual_.as<float>();
    if (layout.attention == cuda::AttentionMode::kUnmerged) {
      args.unmerged = {attention_partials_.as<float>(), At<cuda::AttentionItem>(upload, layout.split_items),
                       config_.num_heads, config_.num_kv_heads, config_.head_dim};
    }
    Multiply("attention output matmul", layer.attention_output, attention_.as<Half>(), nullptr, rows, args,
             stream);
    args = {};
    args.output = cuda::MatmulOutput::kSwiGlu;
    args.gated = gated_.as<Half>();
    Multiply("gate/up matmul", layer.gate_up, nullptr, layer.mlp_norm, rows, args, stream);
    args = {};
    args.output = cuda::MatmulOutput::kResidual;
    args.y = residual_.as<float>();
    Multiply("down matmul", layer.down, gated_.as<Half>(), nullptr, rows, args, stream);
  }
}

cuda::RopeKvArgs CudaForward::RopeKv(const StepLayout& layout, const char* upload,
                                     const cuda::KvLayer& kv) const {
  cuda::RopeKvArgs rope{};
  rope.cosines = cosines_.as<float>();
  rope.sines = sines_.as<float>();
  rope.positions = At<int32_t>(upload, layout.positions);
  rope.slots = At<int32_t>(upload, layout.slots);
  rope.block_tables = block_tables_.as<int32_t>();
  rope.table_stride = table_stride_;
  rope.num_rows = layout.num_rows;
  rope.num_heads = config_.num_heads;
  rope.num_kv_heads = config_.num_kv_heads;
  rope.head_dim = config_.head_dim;
  rope.kv = kv;
  rope.q = query_.as<Half>();
  rope.saturations = saturations();
  return rope;
}

void CudaForward::Qkv(const StepLayout& layout, const char* upload, const CudaLayer& layer,
                      const cuda::KvLayer& kv, cudaStream_t stream) {
  cuda::MatmulArgs args{};
  args.bias = layer.qkv_bias;
  args.output = config_.qk_norm ? cuda::MatmulOutput::kStore : cuda::MatmulOutput::kRopeKv;
  args.y = qkv_.as<float>();
  args.rope = RopeKv(layout, upload, kv);
  Multiply("qkv matmul", layer.qkv, nullptr, layer.attention_norm, layout.num_rows, args, stream);
  if (!config_.qk_norm) return;
  args.rope.qkv = qkv_.as<float>();
  args.rope.q_norm = layer.query_norm;
  args.rope.k_norm = layer.key_norm;
  args.rope.norm_eps = config_.norm_eps;
  Check(cuda::LaunchRopeKv(args.rope, stream), "q/k norm, RoPE and KV write");
}

void CudaForward::Attention(const StepLayout& layout, const char* upload, const cuda::KvLayer& kv,
                            cudaStream_t stream) {
  cuda::AttentionArgs args{};
  args.q = query_.as<Half>();
  args.out = attention_.as<Half>();
  args.block_tables = block_tables_.as<int32_t>();
  args.table_stride = table_stride_;
  args.kv = kv;
  args.num_heads = config_.num_heads;
  args.num_kv_heads = config_.num_kv_heads;
  args.head_dim = config_.head_dim;
  args.partials = attention_partials_.as<float>();
  args.counters = attention_counters_.as<int32_t>();
  args.saturations = saturations();
  if (layout.prefill_count > 0) {
    const auto* items = At<cuda::AttentionItem>(upload, layout.prefill_items);
    Check(attention_limits_.has_wgmma
              ? cuda::LaunchAttentionPrefillWgmma(args, items, layout.prefill_count, device_.num_sms, stream)
              : cuda::LaunchAttentionPrefill(args, items, layout.prefill_count, stream),
          "prefill attention");
  }
  if (layout.split_count == 0) return;
  const cuda::AttentionWork work = {At<cuda::AttentionItem>(upload, layout.split_items),
                                    At<int32_t>(upload, layout.num_split_items)};
  if (layout.attention == cuda::AttentionMode::kGeneral) {
    Check(cuda::LaunchAttentionSplit(args, work, attention_limits_.split_blocks, stream), "split attention");
  } else {
    Check(cuda::LaunchAttentionChunk(args, work, attention_limits_.chunk_blocks, stream), "chunk attention");
  }
}

void CudaForward::Logits(const StepLayout& layout, const char* upload, float* host_logits,
                         cudaStream_t stream) {
  int32_t* tokens = reinterpret_cast<int32_t*>(results_ + 8);
  float* logprobs = reinterpret_cast<float*>(tokens + layout.num_outputs);
  for (int32_t begin = 0; begin < layout.num_outputs; begin += kLogitRows) {
    const int32_t count = std::min(kLogitRows, layout.num_outputs - begin);
    const cuda::SampleRow* rows = At<cuda::SampleRow>(upload, layout.sample_rows) + begin;
    // The arg max is found where the logits come into being, by the kernel that can: they are not even
    // written then.
    const CudaMatrix& head = weights_.output();
    const bool arg_max = cublas_ == nullptr && layout.greedy && host_logits == nullptr &&
                         count <= cuda::kMaxArgMaxRows &&
                         cuda::TakesArgMax(cuda::PlanMatmul(count, head.n, head.k, device_));
    cuda::MatmulArgs args{};
    args.output = arg_max ? cuda::MatmulOutput::kArgMax : cuda::MatmulOutput::kStore;
    args.best = best_.as<uint64_t>();
    args.y = logits_.as<float>();
    args.y_stride = logit_stride_;
    if (layout.num_outputs == layout.num_rows && count == layout.num_rows) {
      Multiply("lm_head matmul", weights_.output(), nullptr, weights_.final_norm(), count, args, stream);
    } else {
      Norm(weights_.final_norm(), At<int32_t>(upload, layout.output_rows) + begin, count, stream);
      Multiply("lm_head matmul", weights_.output(), normed_.as<Half>(), nullptr, count, args, stream);
    }
    if (arg_max) {
      Check(cuda::LaunchTakeBest(best_.as<uint64_t>(), rows, count, last_tokens_.as<int32_t>(),
                                 tokens + begin, stream),
            "arg max");
      continue;
    }
    if (host_logits != nullptr) {
      const size_t width = static_cast<size_t>(config_.vocab_size) * 4;
      Check(cudaMemcpy2DAsync(host_logits + int64_t{begin} * config_.vocab_size, width, logits_.as<float>(),
                              static_cast<size_t>(logit_stride_) * 4, width, static_cast<size_t>(count),
                              cudaMemcpyDeviceToHost, stream),
            "logits copy");
    }
    cuda::SamplingArgs sampling{};
    sampling.logits = logits_.as<float>();
    sampling.row_stride = logit_stride_;
    sampling.num_rows = count;
    sampling.vocab = config_.vocab_size;
    sampling.rows = rows;
    sampling.slots = slot_sampling_.as<cuda::SlotSampling>();
    sampling.last_tokens = last_tokens_.as<int32_t>();
    sampling.tokens = tokens + begin;
    sampling.logprobs = logprobs + begin;
    sampling.workspace = sampling_workspace_.as<void>();
    if (layout.extended) {
      sampling.controls = controls_.pointers();
      sampling.top = top_.as<cuda::TopLogprob>() + int64_t{begin} * cuda::kMaxTopLogprobs;
    }
    Check(cuda::LaunchSampling(sampling, stream), "sampling");
  }
}

void CudaForward::Multiply(const char* name, const CudaMatrix& matrix, const Half* input, const float* norm,
                           int32_t rows, cuda::MatmulArgs args, cudaStream_t stream) {
  if (cublas_ != nullptr) return MultiplyByLibrary(name, matrix, input, norm, rows, args, stream);
  const bool may_leave_chunks =
      args.output == cuda::MatmulOutput::kResidual && matrix.n <= cuda::kMaxPartialSize;
  const cuda::MatmulPlan plan = cuda::PlanMatmul(
      rows, matrix.n, matrix.k, device_, may_leave_chunks ? cuda::MatmulOutput::kPartials : args.output);
  args.x = input;
  if (norm != nullptr && num_partials_ == 0 && cuda::TakesNorm(plan, rows, matrix.k)) {
    args.norm_x = residual_.as<float>();
    args.norm_weight = norm;
    args.norm_eps = config_.norm_eps;
  } else if (norm != nullptr) {
    Norm(norm, nullptr, rows, stream);
    args.x = normed_.as<Half>();
  }
  if (may_leave_chunks && cuda::TakesPartials(plan)) {
    args.output = cuda::MatmulOutput::kPartials;
    num_partials_ = cuda::NumChunks(matrix.k);
    partial_rows_ = rows;
  }
  args.w = matrix.packed;
  args.m = rows;
  args.n = matrix.n;
  args.k = matrix.k;
  if (args.y_stride == 0) args.y_stride = matrix.n;
  args.saturations = saturations();
  args.workspace = matmul_workspace_.as<float>();
  args.counters = matmul_counters_.as<int32_t>();
  Check(cuda::LaunchMatmul(plan, args, stream), name);
}

void CudaForward::BehindAttention(const CudaLayer& layer, int32_t rows, cudaStream_t stream) {
  if (!mlp_.TakesProjection(rows)) {
    cuda::MatmulArgs args{};
    args.output = cuda::MatmulOutput::kResidual;
    args.y = residual_.as<float>();
    Multiply("attention output matmul", layer.attention_output, attention_.as<Half>(), nullptr, rows, args,
             stream);
    RIDGE_CHECK(num_partials_ > 0);  // the MLP's norm adds chunks
  }
  const auto matmul = [&](const CudaMatrix& matrix, const DeviceMemory& x, cuda::MatmulOutput output) {
    cuda::MatmulArgs args{};
    args.x = x.as<Half>();
    args.w = matrix.packed;
    args.gated = gated_.as<Half>();
    args.m = rows;
    args.n = matrix.n;
    args.k = matrix.k;
    args.output = output;
    args.saturations = saturations();
    args.workspace = matmul_workspace_.as<float>();
    return args;
  };
  cuda::MlpArgs args{};
  args.project = matmul(layer.attention_output, attention_, cuda::MatmulOutput::kPartials);
  args.norm = NormArgs(layer.mlp_norm, nullptr, rows);
  args.norm.partials = matmul_workspace_.as<float>();
  args.norm.num_partials = cuda::NumChunks(layer.attention_output.k);
  args.norm.partial_rows = rows;
  args.norm.y = residual_.as<float>();
  args.gate_up = matmul(layer.gate_up, normed_, cuda::MatmulOutput::kSwiGlu);
  args.down = matmul(layer.down, gated_, cuda::MatmulOutput::kPartials);
  num_partials_ = cuda::NumChunks(layer.down.k);
  partial_rows_ = rows;
  Check(mlp_.Launch(args, stream), "MLP");
}

void CudaForward::MultiplyByLibrary(const char* name, const CudaMatrix& matrix, const Half* input,
                                    const float* norm, int32_t rows, const cuda::MatmulArgs& args,
                                    cudaStream_t stream) {
  if (norm != nullptr) {
    Norm(norm, nullptr, rows, stream);
    input = normed_.as<Half>();
  }
  const bool to_wide =
      args.output == cuda::MatmulOutput::kSwiGlu || args.output == cuda::MatmulOutput::kRopeKv;
  CublasLtMatmul matmul{input, matrix.packed, args.bias, args.y, rows, matrix.n, matrix.k, matrix.n, false};
  if (to_wide) matmul.y = wide_.as<float>();
  if (args.y_stride != 0) matmul.y_stride = args.y_stride;
  matmul.add = args.output == cuda::MatmulOutput::kResidual;
  if (status_.ok()) status_ = cublas_->Multiply(matmul, stream);
  launches_.push_back(name);
  if (args.output == cuda::MatmulOutput::kSwiGlu) {
    const int32_t mlp = matrix.n / 2;
    Check(cuda::LaunchSiluMul({matmul.y, matmul.y + mlp, matrix.n, 1, args.gated, rows, mlp, saturations()},
                              stream),
          name);
  }
  if (args.output == cuda::MatmulOutput::kRopeKv) {
    cuda::RopeKvArgs rope = args.rope;
    rope.qkv = matmul.y;
    Check(cuda::LaunchRopeKv(rope, stream), name);
  }
}

cuda::RmsNormArgs CudaForward::NormArgs(const float* weight, const int32_t* row_list, int32_t rows) const {
  return {residual_.as<float>(), row_list,         weight,       normed_.as<Half>(), rows,
          config_.hidden_size,   config_.norm_eps, saturations()};
}

void CudaForward::Norm(const float* weight, const int32_t* row_list, int32_t rows, cudaStream_t stream) {
  cuda::RmsNormArgs args = NormArgs(weight, row_list, rows);
  if (num_partials_ > 0) {
    args.partials = matmul_workspace_.as<float>();
    args.num_partials = std::exchange(num_partials_, 0);
    args.partial_rows = partial_rows_;
    args.y = residual_.as<float>();
  }
  Check(cuda::LaunchRmsNorm(args, stream), "norm");
}

}  // namespace ridge::worker
