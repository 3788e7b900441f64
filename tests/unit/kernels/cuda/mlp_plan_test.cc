#include <gtest/gtest.h>

#include "kernels/cuda/mlp.h"
#include "kernels/cuda/mlp_shape.h"

namespace ridge::kernels::cuda {
namespace {

constexpr MatmulDevice kH200 = {132, 227 << 10, true};
constexpr MlpShape kQwen1B = {1536, 1536, 8960};

TEST(MlpPlan, BatchesOfDecodeRowsTakeOneKernel) {
  EXPECT_EQ(PlanMlp(8, kQwen1B, kH200).ToString(),
            "MLP in one kernel: tokens=8 blocks=132 units=72+120 ring=11x18432");
  EXPECT_EQ(PlanMlp(9, kQwen1B, kH200).ToString(),
            "MLP in one kernel: tokens=32 blocks=132 units=0+120 ring=10x18432");
  EXPECT_EQ(PlanMlp(64, kQwen1B, kH200).ToString(),
            "MLP in one kernel: tokens=64 blocks=132 units=0+120 ring=8x18432");
  EXPECT_TRUE(PlanMlp(64, {896, 896, 4864}, kH200).possible);
}

TEST(MlpPlan, OtherRowsCardsAndShapesTakeKernelsOfTheirOwn) {
  EXPECT_EQ(PlanMlp(4, kQwen1B, kH200).ToString(), "MLP by kernels of its own");
  EXPECT_FALSE(PlanMlp(65, kQwen1B, kH200).possible);
  EXPECT_FALSE(PlanMlp(32, kQwen1B, {72, 99 << 10, false}).possible);
  // More blocks with a row than there are.
  EXPECT_FALSE(PlanMlp(64, kQwen1B, {60, 227 << 10, true}).possible);
  // Chunks longer than the first matmul's loop takes; more units of down than blocks; slices cut off.
  EXPECT_FALSE(PlanMlp(32, {3584, 3584, 18944}, kH200).possible);
  EXPECT_FALSE(PlanMlp(32, {2048, 2048, 8192}, kH200).possible);
  EXPECT_FALSE(PlanMlp(32, {576, 576, 1536}, kH200).possible);
}

TEST(MlpPlan, RingsAndWhatABlockHasBesideFitAndHoldWhatIsUnderWay) {
  for (int32_t m : {5, 8, 9, 32, 33, 64}) {
    for (const MlpShape& shape : {kQwen1B, MlpShape{896, 896, 4864}, MlpShape{2048, 1280, 6912}}) {
      const MlpPlan plan = PlanMlp(m, shape, kH200);
      ASSERT_TRUE(plan.possible);
      EXPECT_LE(plan.shared_bytes + kMlpStaticBytes, kH200.shared_bytes_per_block);
      EXPECT_GE(plan.slots, plan.in_flight);
      // All row tiles of gate/up of a block, and of down's slices.
      EXPECT_GE(plan.slot_bytes * plan.blocks, shape.mlp / 8 * kMlpTileBytes);
      EXPECT_GE(plan.slot_bytes, kMlpUnitTiles * kMlpUnitSlices * kMlpTileBytes);
    }
  }
}

}  // namespace
}  // namespace ridge::kernels::cuda
