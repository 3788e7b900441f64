#include "gtest/gtest.h"
#include "kernels/cuda/decode_layers.h"

namespace ridge::kernels::cuda {
namespace {

constexpr DecodeLayersDevice kH200 = {132, 232448, true};
constexpr DecodeLayersShape kQwen1B = {28, 1536, 8960, 12, 2, 128, false};

TEST(DecodeLayersPlan, TakesUpToFourRowsOfQwen1BInSharedMemory) {
  for (int32_t rows = 1; rows <= kMaxDecodeLayersRows; ++rows) {
    const DecodeLayersPlan plan = PlanDecodeLayers(rows, kQwen1B, kH200);
    ASSERT_TRUE(plan.possible) << rows;
    EXPECT_EQ(plan.blocks, 132);
    EXPECT_LE(plan.shared_bytes, kH200.shared_bytes_per_block);
    EXPECT_EQ(plan.ring_slots, rows == 1 ? 26 : rows == 2 ? 25 : 23);
  }
  EXPECT_FALSE(PlanDecodeLayers(0, kQwen1B, kH200).possible);
  EXPECT_FALSE(PlanDecodeLayers(kMaxDecodeLayersRows + 1, kQwen1B, kH200).possible);
}

TEST(DecodeLayersPlan, OneRowTakesTheShorterRingWhereTheLongerHasNoRoom) {
  DecodeLayersDevice device = kH200;
  // Less than that and what the kernel has besides.
  device.shared_bytes_per_block = PlanDecodeLayers(1, kQwen1B, kH200).shared_bytes + 2048;
  const DecodeLayersPlan plan = PlanDecodeLayers(1, kQwen1B, device);
  ASSERT_TRUE(plan.possible);
  EXPECT_EQ(plan.ring_slots, 25);
}

TEST(DecodeLayersPlan, RefusesWhatTheKernelCannotDo) {
  const auto possible = [](const DecodeLayersShape& shape, const DecodeLayersDevice& device) {
    return PlanDecodeLayers(1, shape, device).possible;
  };
  EXPECT_FALSE(possible(kQwen1B, {132, 232448, false}));                // no bulk copies
  EXPECT_FALSE(possible(kQwen1B, {72, 101376, true}));                  // too little shared memory
  EXPECT_FALSE(possible({28, 1536, 8960, 12, 2, 128, true}, kH200));    // q and k are normed
  EXPECT_FALSE(possible({28, 1536, 8960, 12, 1, 128, false}, kH200));   // 12 query heads a KV head
  EXPECT_FALSE(possible({28, 1536, 8960, 16, 2, 96, false}, kH200));    // heads of 96
  EXPECT_FALSE(possible({24, 896, 4864, 14, 2, 64, false}, kH200));     // chunks of K that are shorter
  EXPECT_FALSE(possible({28, 2048, 8960, 12, 2, 128, false}, kH200));   // more columns than a thread's four
  EXPECT_FALSE(possible({28, 1536, 10240, 12, 2, 128, false}, kH200));  // a chunk of down too wide for x
}

TEST(DecodeLayersPlan, PrintsItsChoice) {
  EXPECT_EQ(PlanDecodeLayers(0, kQwen1B, kH200).ToString(), "layers by kernels of their own");
  EXPECT_EQ(PlanDecodeLayers(1, kQwen1B, kH200).ToString().substr(0, 46),
            "layers in one kernel: blocks=132 ring=26 share");
}

}  // namespace
}  // namespace ridge::kernels::cuda
