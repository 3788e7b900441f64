// For tests on the fake CUDA runtime: a card with sm_90a's instructions, and a model whose layers its kernels
// of all blocks at once take.
#pragma once

#include "tests/support/fake_cuda_runtime.h"
#include "worker/model/open_model.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {

inline fake_cuda::Card Hopper(int cooperative_blocks) {
  fake_cuda::Card card;
  card.major = 9;
  card.minor = 0;
  card.num_sms = 132;
  card.shared_bytes_per_block = 227 << 10;
  card.memory_bytes = int64_t{64} << 30;
  card.maps_tensors = true;
  card.cooperative_blocks = cooperative_blocks;
  return card;
}

inline SyntheticSource TwoLayers() {
  ModelConfig config = OpenModel("synthetic:qwen2.5-1.5b").value()->config();
  config.num_layers = 2;
  config.vocab_size = 1024;
  return SyntheticSource(config);
}

}  // namespace ridge::worker
