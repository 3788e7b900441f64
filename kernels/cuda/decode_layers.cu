// The layers of a decode step of up to 4 rows, by one block a multiprocessor that stays for all of them.
//
// Geometry: 16 warps. One (decode_layers_fill.cuh) fills a ring in shared memory with the block's weights, 8
// KiB a piece, in the order in which they will be used, layer after layer, and with attention's old keys and
// values; it waits for free slots alone, and so runs ahead of everything that waits for results. Twelve
// multiply (decode_layers_multiply.cuh): a warp a chain (a row tile and chunk of K), weights as the 16-row
// operand, tokens as n8, so that 4 rows take what one takes; eight of them do attention
// (decode_layers_attention.cuh). Three finish (decode_layers_finish.cuh): they add the chunks' sums, do what
// follows (bias and RoPE, residual, SwiGLU) and hand the results over; and they fold attention's chunks
// (decode_layers_fold.cuh).
//
// Phases of a layer: (1) norm, q/k/v, RoPE, KV write; (2) attention, a chunk of keys and KV head a block; (3)
// where a row has several chunks, their fold, 64 columns of a head a warp; (4) O and residual; (5) norm,
// gate/up, SwiGLU; (6) down: a block takes one chunk of K and hands over sums, (7) the block that owns a tile
// of the residual stream adds them. Every block norms for itself. Tiles of O and of the residual stream are a
// block's own, so that its part stays in shared memory.
//
// Hand-over: who needs a word polls it (handover.cuh). What all blocks read, rows of the residual stream, of
// attention's result and of the MLP, are armed words, an own place for each layer, so that none is written
// twice in a launch; two sets take turns, and each launch arms what the one before it wrote. The filling warp
// does that, and brings the words of the next layers to L2, where they are no longer after lm_head. What few
// read has tags that no other layer or launch has; such an array is written again a layer later by blocks
// that then depend, through the phases between, on everyone who read it. It cannot deadlock: all blocks are resident (a cooperative
// launch), each warp goes through layers and phases in the same order, and a phase waits for nothing but
// words of earlier ones. Within a block the filling warp waits for slots only, which the others give back in
// the order of filling; attention needs at most 16 of 20 pieces at a time.
//
// What counts is the way from one result to the next: of a layer's 30 us, 20 are its weights at full speed,
// and code that runs once a layer is fetched anew each time. So each phase is one function, short, and as
// many threads as there are do its part: in a norm each has four columns of all rows, at places that are
// constants.
//
// Bits: each chunk of K is one chain of mma.m16n8k16, chunk sums are added in ascending order, attention's
// chunks are folded in ascending order: those of the kernels in matmul.h and attention.h.
//
// Bytes: the layers' weights once, K and V once a KV head; from L2 the rows handed over, once a block. FLOPs:
// 2 a weight and row, on tiles of 8 rows. Shared memory: the ring, x, sums: 223 KiB for one row of
// Qwen2.5-1.5B. sm_90a only: elsewhere the plan says no. Reference: the kernels that it stands for
// (tests/gpu/decode_layers_test.cc).
#include <cuda_fp16.h>

#include "kernels/cuda/decode_layers_fill.cuh"
#include "kernels/cuda/decode_layers_finish.cuh"
#include "kernels/cuda/decode_layers_multiply.cuh"
#include "kernels/cuda/launch.cuh"

namespace ridge::kernels::cuda {
namespace {

#if __CUDA_ARCH__ >= 900

using namespace decode_layers;

// What of the step is this block's, by one thread; `layout` is of shared memory at `shared`.
__device__ void SetBlock(const DecodeLayersArgs& args, const DecodeLayersLayout& layout, uint8_t* shared,
                         Block* block) {
  const DecodeLayersShape& shape = args.shape;
  const int blocks = static_cast<int>(gridDim.x), index = static_cast<int>(blockIdx.x);
  block->args = args;
  block->words = WordsOf(args.workspace, shape, blocks);
  block->rows = args.rope.num_rows;
  // Launches follow one another: how many blocks have started, over all of them, says which launch this is.
  DecodeLayersState* const state = block->words.state;
  const uint64_t launch = atomicAdd(&state->started, 1ull) / gridDim.x;
  block->tags.first = static_cast<uint32_t>(launch) * static_cast<uint32_t>(shape.num_layers + 1) + 1;
  const int set = static_cast<int>(launch % 2);
  const int64_t set_words = int64_t{shape.num_layers} * kMaxDecodeLayersRows * kArmedRow;
  block->armed = block->words.armed + set * set_words;
  block->arming = block->words.armed + (1 - set) * set_words;
  block->arming_rows = state->rows[1 - set];
  if (index == 0) state->rows[set] = block->rows;
  block->armed_words = kArmedGated + DotChunks(shape.mlp) * kMaxColumns / 2;
  block->chunk_tiles_reciprocal =
      CeilDivide(1 << 20, static_cast<int>(DotChunk(shape.mlp)) / (kTileRows / 2));
  block->groups_reciprocal = CeilDivide(1 << 16, NormGroups(shape.hidden));
  block->q_size = shape.num_heads * shape.head_dim;
  block->qkv_size = block->q_size + 2 * shape.num_kv_heads * shape.head_dim;
  block->layers = reinterpret_cast<const DecodeLayerWeights*>(shared + layout.layers);
  block->x = SharedAddress(shared + layout.x);
  block->all_armed = SharedAddress(shared + layout.all_armed);
  block->sums = SharedAddress(shared + layout.sums);
  block->piece_places = SharedAddress(shared + layout.pieces);
  block->sum_tokens = layout.sum_tokens;
  block->sum_bytes = layout.sum_chunks * layout.sum_tokens * kSumStride * 4;
  block->places = reinterpret_cast<RopePlace*>(shared + layout.places);
  block->residual = reinterpret_cast<float*>(shared + layout.residual);
  // The first blocks have attention to do, and so the fewest tiles of the matrices around it.
  block->shares[kQkv] =
      ShareOf(block->qkv_size, shape.hidden, (index + block->qkv_size / kTileRows) % blocks, blocks);
  block->shares[kAttentionOutput] = ShareOf(shape.hidden, block->q_size, blocks - 1 - index, blocks);
  block->shares[kGateUp] = ShareOf(2 * shape.mlp, shape.hidden, blocks - 1 - index, blocks);
  block->shares[kDown] = SplitShareOf(shape.hidden, shape.mlp, index, blocks);
  block->has_item = index < *args.work.num_items * shape.num_kv_heads;
  if (!block->has_item) return;
  block->item = args.work.items[index / shape.num_kv_heads];
  block->work = WorkOf(args, block->item, 0);
}

#endif  // __CUDA_ARCH__ >= 900

template <int kRows, int kDim>
__global__ void __launch_bounds__(kDecodeLayersThreads, 1)
    DecodeLayersKernel(const __grid_constant__ DecodeLayersArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(256) uint8_t shared[];
  constexpr int kSlots = RingSlots(kRows);
  __shared__ __align__(8) uint64_t barriers[2 * kSlots];
  __shared__ __align__(16) float norm_sums[kRows * kNormHalves];
  __shared__ __align__(16) float norm_scales[kRows];
  __shared__ uint32_t counts[2 * kSumSlots];
  __shared__ Block block;
  const DecodeLayersLayout layout = LayoutOfDecodeLayers(kRows, args.shape, static_cast<int>(gridDim.x));
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads,
            lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  if (threadIdx.x == 0) {
    Ring<kSlots>{SharedAddress(shared), SharedAddress(barriers)}.Init();
    for (uint32_t& count : counts) count = 0;
    for (float& sum : norm_sums) sum = 0.0f;
    for (float& scale : norm_scales) scale = 0.0f;
    FenceBarrierInit();
  }
  if (warp == 1) {
    const uint64_t* from = reinterpret_cast<const uint64_t*>(args.layers);
    const int words = args.shape.num_layers * static_cast<int>(sizeof(DecodeLayerWeights) / 8);
    for (int i = lane; i < words; i += kWarpThreads)
      reinterpret_cast<uint64_t*>(shared + layout.layers)[i] = from[i];
  }
  if (warp == 3) {
    for (int i = lane * 4; i < kArmedBytes; i += kWarpThreads * 4)
      StoreShared32(SharedAddress(shared) + layout.all_armed + i, kArmed);
    FenceForBulkCopies();
  }
  WaitForPriorKernel();
  LaunchNextKernel();
  if (threadIdx.x == 2 * kWarpThreads) {
    SetBlock(args, layout, shared, &block);
    block.ring_pieces = SharedAddress(shared);
    block.ring_barriers = SharedAddress(barriers);
    block.norm_sums = SharedAddress(norm_sums);
    block.norm_scales = SharedAddress(norm_scales);
    block.sums_stored = SharedAddress(counts);
    block.sums_taken = SharedAddress(counts + kSumSlots);
  }
  __syncthreads();
  const uint32_t block_address = SharedAddress(&block);
  if (warp < kConsumerWarps) {
    Consume<kRows, kDim>(block_address, warp, lane);
  } else if (warp == kProducer) {
    FillRing<kSlots, kDim>(block, lane);
  } else {
    FinishLayers<kDim>(block_address, warp - kProducer - 1, lane);
  }
#endif
}

using Kernel = void (*)(DecodeLayersArgs);

template <int kDim>
Kernel KernelFor(int max_rows) {
  return max_rows == 1   ? DecodeLayersKernel<1, kDim>
         : max_rows == 2 ? DecodeLayersKernel<2, kDim>
                         : DecodeLayersKernel<4, kDim>;
}

Kernel KernelFor(int max_rows, int head_dim) {
  return head_dim == 64 ? KernelFor<64>(max_rows) : KernelFor<128>(max_rows);
}

}  // namespace

cudaError_t PrepareDecodeLayers() {
  int device = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  for (const int max_rows : {1, 2, 4}) {
    for (const int head_dim : {64, 128}) {
      const Kernel kernel = KernelFor(max_rows, head_dim);
      cudaFuncAttributes attributes{};
      if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
      if (error != cudaSuccess) return error;
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   shared - static_cast<int>(attributes.sharedSizeBytes));
    }
  }
  return error;
}

cudaError_t LaunchClearDecodeLayers(void* workspace, const DecodeLayersShape& shape, int32_t num_sms,
                                    cudaStream_t stream) {
  const DecodeLayersWords words = WordsOf(workspace, shape, num_sms);
  const cudaError_t error = cudaMemsetAsync(workspace, 0, static_cast<size_t>(words.tagged_bytes), stream);
  if (error != cudaSuccess) return error;
  return cudaMemsetAsync(words.armed, kArmed & 0xFF, static_cast<size_t>(words.armed_bytes), stream);
}

cudaError_t LaunchDecodeLayers(const DecodeLayersPlan& plan, const DecodeLayersArgs& args,
                               cudaStream_t stream) {
  if (!plan.possible) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
  config.blockDim = dim3(kDecodeLayersThreads);
  config.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, KernelFor(plan.max_rows, args.shape.head_dim), args);
}

}  // namespace ridge::kernels::cuda
