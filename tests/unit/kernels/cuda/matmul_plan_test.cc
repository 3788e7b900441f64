#include <gtest/gtest.h>

#include <utility>

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/packing.h"

namespace ridge::kernels::cuda {
namespace {

constexpr MatmulDevice kH200 = {132, 227 << 10, true, 4};
constexpr MatmulDevice kA10 = {72, 99 << 10, false};

TEST(MatmulPlan, FewRowsGoToTheDecodeKernelWithAWarpATileAndChunk) {
  EXPECT_EQ(PlanMatmul(1, 2048, 1536, kH200).ToString(), "decode rows=16 tokens=8 blocks=128");
  EXPECT_EQ(PlanMatmul(16, 1536, 8960, kA10).ToString(), "decode rows=16 tokens=16 blocks=96");
  EXPECT_EQ(PlanMatmul(3, 960, 576, kH200).ToString(), "decode rows=32 tokens=8 blocks=30");
}

TEST(MatmulPlan, ChunksAreSplitOnlyWhereHalfOfTheMultiprocessorsWouldBeIdle) {
  for (int32_t m : {33, 64, 128, 4096}) {
    const MatmulPlan plan = PlanMatmul(m, 2048, 1536, kA10);
    const int32_t tiles = (m + plan.token_tile - 1) / plan.token_tile * (2048 / plan.row_tile);
    EXPECT_EQ(plan.split_chunks, 2 * tiles < kA10.num_sms) << m;
    EXPECT_EQ(plan.blocks, plan.split_chunks ? 6 * tiles : tiles) << m;
    if (plan.split_chunks) {
      EXPECT_EQ(MatmulWorkspaceBytes(plan, m, 2048, 1536),
                int64_t{6} * tiles * plan.token_tile * plan.row_tile * 4);
      EXPECT_EQ(MatmulCounterBytes(plan, m, 2048), tiles * 4);
    }
  }
}

TEST(MatmulPlan, WarpgroupTilesAreCutSoThatTheyFillTheCard) {
  EXPECT_EQ(PlanMatmul(128, 1536, 8960, kH200).ToString(),
            "wgmma rows=128 tokens=64 blocks=120 split clusters=2x2");
  EXPECT_EQ(PlanMatmul(256, 1536, 8960, kH200).ToString(),
            "wgmma rows=128 tokens=128 blocks=120 split clusters=2x2");
  EXPECT_EQ(PlanMatmul(512, 1536, 8960, kH200).ToString(), "wgmma rows=128 tokens=64 blocks=96 clusters=2x2");
  EXPECT_EQ(PlanMatmul(1024, 1536, 8960, kH200).ToString(),
            "wgmma rows=128 tokens=128 blocks=96 clusters=2x2");
  EXPECT_EQ(PlanMatmul(512, 2048, 1536, kH200).ToString(),
            "wgmma rows=128 tokens=64 blocks=128 clusters=2x2");
  const MatmulPlan split = PlanMatmul(128, 1536, 8960, kH200);
  EXPECT_EQ(MatmulWorkspaceBytes(split, 128, 1536, 8960), int64_t{5} * 128 * 1536 * 4);
  EXPECT_EQ(MatmulCounterBytes(split, 128, 1536), 24 * 4);
}

TEST(MatmulPlan, WarpgroupTilesMeetInClustersThatDivideThemAndThatTheCardHas) {
  const auto clusters = [](int32_t m, int32_t n, int32_t most) {
    MatmulDevice device = kH200;
    device.most_in_cluster = most;
    const MatmulPlan plan = PlanMatmul(m, n, 1536, device);
    EXPECT_EQ(plan.kernel, MatmulKernel::kWgmma);
    return std::pair(plan.cluster_rows, plan.cluster_tokens);
  };
  EXPECT_EQ(clusters(4096, 17920, 4), std::pair(2, 2));
  EXPECT_EQ(clusters(4096, 17920, 2), std::pair(2, 1));
  EXPECT_EQ(clusters(4096, 17920, 1), std::pair(1, 1));
  EXPECT_EQ(clusters(4096, 17920 + 128, 4), std::pair(1, 2));
  EXPECT_EQ(clusters(4096, 17920 + 128, 2), std::pair(1, 2));
  EXPECT_EQ(clusters(4096 + 128, 17920, 4), std::pair(2, 1));
}

TEST(MatmulPlan, ManyRowsTakeWarpgroupInstructionsWhereThereAreAny) {
  EXPECT_EQ(PlanMatmul(4096, 17920, 1536, kH200).ToString(),
            "wgmma rows=128 tokens=128 blocks=4480 clusters=2x2");
  EXPECT_EQ(PlanMatmul(4096, 17920, 1536, kA10).ToString(), "tiled rows=128 tokens=128 blocks=4480");
}

TEST(MatmulPlan, SplitChunksMeetInClustersWhereTheCardHasThemAndRoom) {
  EXPECT_EQ(PlanMatmul(64, 2048, 1536, kH200).ToString(), "batch rows=64 tokens=64 blocks=192 clusters");
  EXPECT_EQ(PlanMatmul(64, 1536, 1536, kA10).cluster, 0);
}

TEST(MatmulPlan, ManyTilesKeepTheirRowsOfXInSharedMemory) {
  EXPECT_EQ(PlanMatmul(32, 17920, 1536, kA10).ToString(), "resident rows=128 tokens=32 blocks=72");
  EXPECT_EQ(PlanMatmul(17, 151936, 1536, kA10).ToString(), "resident rows=192 tokens=32 blocks=72");
  EXPECT_EQ(PlanMatmul(33, 17920, 1536, kA10).kernel, MatmulKernel::kTiled);
}

TEST(MatmulPlan, WarpgroupInstructionsTakeBatchesOfDecodeRows) {
  EXPECT_EQ(PlanMatmul(17, 17920, 1536, kH200).ToString(), "batch rows=144 tokens=32 blocks=125");
  EXPECT_EQ(PlanMatmul(64, 151936, 1536, kH200).ToString(), "batch rows=192 tokens=64 blocks=132");
  EXPECT_TRUE(TakesArgMax(PlanMatmul(kMaxArgMaxRows, 151936, 1536, kH200)));
  // All of a chunk's x stands in a block's shared memory: too much for a cluster of such blocks.
  const MatmulPlan down = PlanMatmul(64, 1536, 8960, kH200);
  EXPECT_EQ(down.ToString(), "batch rows=64 tokens=64 blocks=120 split");
  EXPECT_TRUE(TakesPartials(down));
  EXPECT_EQ(MatmulBatchSharedBytes(down, 8960), 64 * 1792 * 2);
  // Or for one block.
  EXPECT_EQ(PlanMatmul(64, 3584, 18944, kH200).kernel, MatmulKernel::kTiled);
  EXPECT_EQ(PlanMatmul(65, 1536, 8960, kH200).kernel, MatmulKernel::kWgmma);
}

TEST(MatmulPlan, FewRowsAreSplitWhereTheNextNormAddsTheirChunks) {
  for (int32_t m : {5, 8}) {
    const MatmulPlan o = PlanMatmul(m, 1536, 1536, kH200, MatmulOutput::kPartials);
    EXPECT_EQ(o.ToString(), "batch rows=64 tokens=8 blocks=144 split");
    EXPECT_TRUE(TakesPartials(o));
    EXPECT_FALSE(o.alone);
    EXPECT_EQ(PlanMatmul(m, 1536, 1536, kH200).kernel, MatmulKernel::kDecode);
    EXPECT_EQ(PlanMatmul(m, 1536, 1536, kA10, MatmulOutput::kPartials).kernel, MatmulKernel::kDecode);
    // With tiles for all, blocks have all of K.
    EXPECT_EQ(PlanMatmul(m, 17920, 1536, kH200, MatmulOutput::kPartials).kernel, MatmulKernel::kDecode);
  }
  EXPECT_EQ(PlanMatmul(4, 1536, 1536, kH200, MatmulOutput::kPartials).kernel, MatmulKernel::kDecode);
}

TEST(MatmulPlan, BlocksThatLeaveChunksHaveAMultiprocessorEachWhereThereAreEnough) {
  for (int32_t m : {8, 32, 64}) {
    const MatmulPlan down = PlanMatmul(m, 1536, 8960, kH200, MatmulOutput::kPartials);
    EXPECT_TRUE(down.alone) << m;
    EXPECT_EQ(down.blocks, 120);
    EXPECT_GT(2 * MatmulBatchSharedBytes(down, 8960), 228 << 10);
    EXPECT_LE(MatmulBatchSharedBytes(down, 8960) + kMatmulBatchStaticBytes, kH200.shared_bytes_per_block);
  }
}

// What a block of a kernel may have on the cards with the least.
TEST(MatmulPlan, NoBlockNeedsMoreSharedMemoryThanTheCardHas) {
  for (int32_t k : {576, 896, 1536, 2048, 4864, 8960}) {
    for (int32_t m : {1, 2, 8, 16, 17, 32}) {
      const MatmulPlan plan = PlanMatmul(m, 151936, k, kA10);
      const int32_t bytes = plan.kernel == MatmulKernel::kDecode     ? MatmulDecodeSharedBytes(plan, m, k)
                            : plan.kernel == MatmulKernel::kResident ? MatmulResidentSharedBytes(k)
                                                                     : 0;
      EXPECT_LE(bytes, kA10.shared_bytes_per_block) << plan.ToString() << ", k " << k;
    }
  }
}

TEST(MatmulPlan, ARowOfOneChunkIsNeverSplit) {
  EXPECT_FALSE(PlanMatmul(100, 64, 128, kH200).split_chunks);
}

// Before it asks for a card.
TEST(MatmulLaunch, AKernelRefusesInputsAndOutputsThatAreAnothers) {
  MatmulArgs plain{};
  plain.n = 1536;
  plain.k = 1536;
  MatmulArgs normed = plain, unmerged = plain, partials = plain, arg_max = plain;
  const float x = 0.0f;
  normed.norm_x = &x;
  const AttentionItem item{};
  unmerged.unmerged.items = &item;
  partials.output = MatmulOutput::kPartials;
  arg_max.output = MatmulOutput::kArgMax;
  const auto refuses = [](MatmulKernel kernel, int32_t m, MatmulArgs args) {
    MatmulPlan plan = PlanMatmul(m, args.n, args.k, kA10);
    plan.kernel = kernel;
    args.m = m;
    return LaunchMatmul(plan, args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses(MatmulKernel::kDecode, 16, partials));
  EXPECT_TRUE(refuses(MatmulKernel::kDecode, 16, normed));
  EXPECT_TRUE(refuses(MatmulKernel::kDecode, 16, unmerged));
  const MatmulArgs* const of_others[] = {&normed, &unmerged, &partials, &arg_max};
  for (const MatmulArgs* args : of_others) {
    EXPECT_TRUE(refuses(MatmulKernel::kTiled, 64, *args));
    if (args != &arg_max) {
      EXPECT_TRUE(refuses(MatmulKernel::kResident, 32, *args));
    }
  }
}

TEST(Packing, IndexIsAPermutationAndKeepsALanesFragmentTogether) {
  constexpr int64_t kRows = 32, kColumns = 48;
  std::vector<bool> taken(PackedSize(kRows, kColumns));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = 0; column < kColumns; ++column) {
      const size_t index = static_cast<size_t>(PackedIndex(row, column, kColumns));
      ASSERT_LT(index, taken.size());
      EXPECT_FALSE(taken[index]);
      taken[index] = true;
    }
  }
  // Lane 5 (row 1, columns 2, 3) of tile (0, 0).
  EXPECT_EQ(PackedIndex(1, 2, kColumns), 40);
  EXPECT_EQ(PackedIndex(9, 2, kColumns), 42);
  EXPECT_EQ(PackedIndex(1, 10, kColumns), 44);
  EXPECT_EQ(PackedIndex(9, 11, kColumns), 47);
}

TEST(Packing, GateAndUpShareTiles) {
  EXPECT_EQ(PackedRow(RowPlacement::kGate, 9), 17);
  EXPECT_EQ(PackedRow(RowPlacement::kUp, 9), 25);
  EXPECT_EQ(PackedRow(RowPlacement::kPlain, 9), 9);
}

}  // namespace
}  // namespace ridge::kernels::cuda
