// What a step changes in the slots' device state, before its rows are computed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sampling.h"

namespace ridge::kernels::cuda {

struct SamplingChange {
  SlotSampling sampling;
  int32_t slot;
  int32_t unused = 0;
};

// Entry `index` of a slot's block table.
struct BlockChange {
  int32_t slot;
  int32_t index;
  int32_t block;
};

struct SlotChangesArgs {
  const SamplingChange* sampling_changes;
  int32_t num_sampling_changes;
  const BlockChange* block_changes;
  int32_t num_block_changes;
  SlotSampling* slots;    // [slots]
  int32_t* block_tables;  // [slots][table_stride]
  int32_t table_stride;
};

[[nodiscard]] cudaError_t LaunchSlotChanges(const SlotChangesArgs& args, cudaStream_t stream);

}  // namespace ridge::kernels::cuda
