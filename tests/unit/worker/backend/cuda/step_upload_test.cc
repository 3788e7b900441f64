#include "worker/backend/cuda/step_upload.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

using kernels::cuda::AttentionItem;
using kernels::cuda::BlockChange;
using kernels::cuda::SampleRow;
using kernels::cuda::SamplingChange;

class StepUploadTest : public testing::Test {
 protected:
  StepUploadTest()
      : upload_({.vocab_size = 100,
                 .context_length = 256,
                 .max_rows = 64,
                 .max_slots = 8,
                 .num_blocks = 32,
                 .attention = {.num_heads = 4,
                               .num_kv_heads = 2,
                               .head_dim = 16,
                               .num_sms = 4,
                               .split_blocks = 8,
                               .max_partials = 64,
                               .max_shared_tiles = 64}}),
        bytes_(static_cast<size_t>(upload_.max_bytes()), '\x55') {}

  template <typename T>
  std::vector<T> Part(int64_t offset, int32_t count) const {
    std::vector<T> part(static_cast<size_t>(count));
    if (count > 0) std::memcpy(part.data(), bytes_.data() + offset, part.size() * sizeof(T));
    return part;
  }

  StepUpload upload_;
  std::vector<char> bytes_;
};

// Slot 3 prefills 20 tokens, slot 5 resumes with its last token and one from the host.
StepPlan MixedPlan() {
  StepPlan plan;
  plan.attaches = {{3, {.temperature = 0.5f, .top_k = 7, .seed = 9}}, {5, {.logprobs = true}}};
  plan.appends = {{3, 30}, {5, 2}, {3, 11}};
  plan.tokens.assign(20, 42);
  plan.tokens.push_back(17);
  plan.segments = {{3, 0, 20, false, 0, 2}, {5, 0, 1, false, 20, 1}};
  return plan;
}

TEST_F(StepUploadTest, RowsOutputsAndChangesStandWhereTheLayoutSays) {
  upload_.Build(MixedPlan());
  EXPECT_FALSE(upload_.is_decode());
  const StepLayout layout = upload_.Write(21, 3, bytes_.data());
  EXPECT_LE(layout.bytes, upload_.max_bytes());
  std::vector<int32_t> tokens(20, 42), slots(20, 3);
  tokens.push_back(17);
  slots.push_back(5);
  EXPECT_EQ(Part<int32_t>(layout.tokens, 21), tokens);
  EXPECT_EQ(Part<int32_t>(layout.slots, 21), slots);
  EXPECT_EQ(Part<int32_t>(layout.positions, 21)[19], 19);
  EXPECT_EQ(Part<int32_t>(layout.positions, 21)[20], 0);
  EXPECT_EQ(Part<int32_t>(layout.output_rows, 3), (std::vector<int32_t>{18, 19, 20}));
  const auto samples = Part<SampleRow>(layout.sample_rows, 3);
  EXPECT_EQ(samples[1].slot, 3);
  EXPECT_EQ(samples[1].position, 20);
  EXPECT_EQ(samples[2].slot, 5);
  EXPECT_EQ(samples[2].position, 1);
  EXPECT_EQ(Part<int32_t>(layout.num_split_items, 1)[0], layout.split_count);

  ASSERT_EQ(layout.sampling_change_count, 2);
  const auto sampling = Part<SamplingChange>(layout.sampling_changes, 2);
  EXPECT_EQ(sampling[0].slot, 3);
  EXPECT_EQ(sampling[0].sampling.temperature, 0.5f);
  EXPECT_EQ(sampling[0].sampling.top_k, 7);
  EXPECT_EQ(sampling[0].sampling.seed, 9u);
  EXPECT_EQ(sampling[1].sampling.logprobs, 1);
  ASSERT_EQ(layout.block_change_count, 3);
  const auto blocks = Part<BlockChange>(layout.block_changes, 3);
  EXPECT_EQ(blocks[2].slot, 3);
  EXPECT_EQ(blocks[2].index, 1);
  EXPECT_EQ(blocks[2].block, 11);
}

TEST_F(StepUploadTest, DecodeStepsTakeTheSlotsTokenAndAreFilledUpWithRowsOfNoSlot) {
  upload_.Build(MixedPlan());
  StepPlan plan;
  plan.segments = {{5, 1, 1, true, 0, 1}, {3, 20, 1, true, 0, 1}};
  upload_.Build(plan);
  EXPECT_TRUE(upload_.is_decode());
  const StepLayout layout = upload_.Write(4, 4, bytes_.data());
  EXPECT_EQ(Part<int32_t>(layout.tokens, 4), (std::vector<int32_t>{-6, -4, 0, 0}));
  EXPECT_EQ(Part<int32_t>(layout.slots, 4), (std::vector<int32_t>{5, 3, -1, -1}));
  EXPECT_EQ(Part<int32_t>(layout.positions, 4), (std::vector<int32_t>{1, 20, 0, 0}));
  const auto samples = Part<SampleRow>(layout.sample_rows, 4);
  EXPECT_EQ(samples[1].slot, 3);
  EXPECT_EQ(samples[1].position, 21);
  EXPECT_EQ(samples[2].slot, -1);
  EXPECT_EQ(layout.block_change_count, 0);
}

TEST_F(StepUploadTest, RowsOfARectangleReadItsWidth) {
  StepPlan prefill = MixedPlan();
  prefill.attaches.push_back({6, {}});
  for (const SlotId slot : {5, 6, 6}) prefill.appends.push_back({slot, 7 + slot});
  upload_.Build(prefill);
  StepPlan plan;
  plan.segments = {{5, 1, 1, true, 0, 1}, {3, 20, 1, true, 0, 1}};
  plan.padded_rows = 2;
  plan.padded_width = 21;
  plan.padded_slots = {6};  // the other padded row attends to nothing
  upload_.Build(plan);
  EXPECT_TRUE(upload_.is_decode());
  const StepLayout layout = upload_.Write(4, 4, bytes_.data());
  const auto items = Part<AttentionItem>(layout.split_items, layout.split_count);
  ASSERT_EQ(items.size(), 3u);
  const int32_t num_keys[] = {2, 21, 21}, tables[] = {5, 3, 6};
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(items[i].first_row, static_cast<int32_t>(i));
    EXPECT_EQ(items[i].num_keys, num_keys[i]);
    EXPECT_EQ(items[i].num_read, 21);
    EXPECT_EQ(items[i].table_row, tables[i]);
  }
}

TEST_F(StepUploadTest, OutputsSayWhatIsScoredControlledAndReported) {
  StepPlan plan;
  SlotAttach penalised{1, {.temperature = 0.0f, .repetition_penalty = 1.5f}};
  penalised.prompt_tokens = 4;
  SlotAttach late{2, {.temperature = 0.0f, .logprobs = true, .top_logprobs = 3, .prompt_top_logprobs = 2}};
  late.prompt_tokens = 4;
  late.controls.late_ids = {7};
  late.controls.min_tokens = 1;
  plan.attaches = {penalised, late, {3, {.temperature = 0.0f}}};
  plan.appends = {{1, 0}, {2, 1}, {3, 2}};
  plan.tokens = {10, 11, 12, 13};
  plan.targets = {11, 12, 13};
  plan.segments = {{1, 0, 4, false, 0, 1}, {2, 0, 4, false, 0, 1, 3, 0}, {3, 0, 4, false, 0, 1}};
  upload_.Build(plan);
  EXPECT_TRUE(upload_.is_extended());
  EXPECT_FALSE(upload_.is_greedy());
  EXPECT_EQ(upload_.num_top(), (std::vector<int32_t>{0, 2, 2, 2, 3, 0}));
  const StepLayout layout = upload_.Write(12, 6, bytes_.data());
  EXPECT_EQ(Part<int32_t>(layout.output_rows, 6), (std::vector<int32_t>{3, 4, 5, 6, 7, 11}));
  const auto samples = Part<SampleRow>(layout.sample_rows, 6);
  EXPECT_EQ(samples[0].controlled, 1);
  EXPECT_EQ(samples[1].target, 11);
  EXPECT_EQ(samples[1].controlled, 0);
  EXPECT_EQ(samples[3].target, 13);
  EXPECT_EQ(samples[4].target, -1);
  EXPECT_EQ(samples[4].controlled, 1);  // the first token may not be late
  EXPECT_EQ(samples[5].controlled, 0);
  EXPECT_EQ(Part<SamplingChange>(layout.sampling_changes, 3)[1].sampling.late_position, 5);

  StepPlan next;
  next.banned = {5, 6};
  next.segments = {{2, 4, 1, true, 0, 1}, {3, 4, 1, true, 0, 1, 0, 0, 2, 0}};
  upload_.Build(next);
  const StepLayout decode = upload_.Write(2, 2, bytes_.data());
  const auto rows = Part<SampleRow>(decode.sample_rows, 2);
  EXPECT_EQ(rows[0].controlled, 0);
  EXPECT_EQ(rows[1].controlled, 1);
  EXPECT_TRUE(upload_.is_decode());
}

// What a captured graph relies on.
TEST_F(StepUploadTest, PartsOfADecodeStepDoNotMoveWithWhatStandsInThem) {
  upload_.Build(MixedPlan());
  StepPlan plan;
  plan.segments = {{5, 1, 1, true, 0, 1}};
  upload_.Build(plan);
  const StepLayout layout = upload_.Write(4, 4, bytes_.data()), captured = StepLayout::Of(4, 4, false);
  EXPECT_EQ(layout.tokens, captured.tokens);
  EXPECT_EQ(layout.positions, captured.positions);
  EXPECT_EQ(layout.slots, captured.slots);
  EXPECT_EQ(layout.sample_rows, captured.sample_rows);
  EXPECT_EQ(layout.output_rows, captured.output_rows);
  EXPECT_EQ(layout.num_split_items, captured.num_split_items);
  EXPECT_EQ(layout.split_items, captured.split_items);
}

TEST_F(StepUploadTest, AStepIsGreedyWhereEveryOutputIsAnArgMaxWithoutLogprob) {
  StepPlan plan = MixedPlan();
  plan.attaches[0].sampling.temperature = 0.0f;
  plan.attaches[1].sampling = {.temperature = 0.0f};
  upload_.Build(plan);
  EXPECT_TRUE(upload_.is_greedy());
  plan = StepPlan();
  plan.releases = {3, 5};
  upload_.Build(plan);
  upload_.Build(MixedPlan());
  EXPECT_FALSE(upload_.is_greedy());
}

TEST_F(StepUploadTest, AReleasedSlotStartsWithAnEmptyBlockTable) {
  upload_.Build(MixedPlan());
  StepPlan plan;
  plan.releases = {3};
  plan.attaches = {{3, {}}};
  plan.appends = {{3, 4}};
  plan.tokens = {1};
  plan.segments = {{3, 0, 1, false, 0, 1}};
  upload_.Build(plan);
  const StepLayout layout = upload_.Write(1, 1, bytes_.data());
  ASSERT_EQ(layout.block_change_count, 1);
  EXPECT_EQ(Part<BlockChange>(layout.block_changes, 1)[0].index, 0);
}

// Prompts with the same beginning share its blocks: a step may hand out more than the pool has.
TEST_F(StepUploadTest, EverySlotMayGetAWholeBlockTableInOneStep) {
  StepPlan plan;
  for (SlotId slot = 0; slot < 8; ++slot) {
    plan.attaches.push_back({slot, {}});
    for (BlockId block = 0; block < 16; ++block) plan.appends.push_back({slot, block});
  }
  upload_.Build(plan);
  const StepLayout layout = upload_.Write(0, 0, bytes_.data());
  EXPECT_EQ(layout.block_change_count, 128);
  EXPECT_LE(layout.bytes, upload_.max_bytes());
}

TEST_F(StepUploadTest, TheFullestStepHasRoom) {
  StepPlan plan;
  for (SlotId slot = 0; slot < 8; ++slot) {
    plan.attaches.push_back({slot, {}});
    for (BlockId block = 0; block < 16; ++block) plan.appends.push_back({slot, block});
    plan.segments.push_back({slot, 248, 8, false, 0, 8});
  }
  plan.tokens.assign(8, 1);
  upload_.Build(plan);
  const StepLayout layout = upload_.Write(64, 64, bytes_.data());
  EXPECT_EQ(layout.split_count, 8);  // 16 rows x heads a tile
  EXPECT_LE(layout.bytes, upload_.max_bytes());
}

TEST_F(StepUploadTest, ASequenceGoesUpToTheLastPositionOfTheContext) {
  StepPlan plan;
  plan.attaches = {{0, {}}};
  for (BlockId block = 0; block < 16; ++block) plan.appends.push_back({0, block});
  plan.tokens = {1};
  plan.segments = {{0, 255, 1, false, 0, 1}};
  upload_.Build(plan);
  const StepLayout layout = upload_.Write(1, 1, bytes_.data());
  EXPECT_EQ(Part<int32_t>(layout.positions, 1)[0], 255);
  EXPECT_EQ(Part<SampleRow>(layout.sample_rows, 1)[0].position, 256);
  EXPECT_EQ(Part<AttentionItem>(layout.split_items, 1)[0].num_keys, 256);
  StepPlan beyond;
  beyond.tokens = {1};
  beyond.segments = {{0, 256, 1, false, 0, 1}};
  EXPECT_DEATH(upload_.Build(beyond), "");
}

TEST_F(StepUploadTest, APlanThatDoesNotFitIsABug) {
  StepPlan taken_twice = MixedPlan();
  taken_twice.attaches.push_back({3, {}});
  EXPECT_DEATH(upload_.Build(taken_twice), "");
  StepPlan no_blocks = MixedPlan();
  no_blocks.appends.pop_back();
  EXPECT_DEATH(upload_.Build(no_blocks), "");
  StepPlan no_token = MixedPlan();
  no_token.segments[1].first_row_from_slot = true;
  EXPECT_DEATH(upload_.Build(no_token), "");
  StepPlan outside_vocabulary = MixedPlan();
  outside_vocabulary.tokens[3] = 100;
  EXPECT_DEATH(upload_.Build(outside_vocabulary), "");
}

}  // namespace
}  // namespace ridge::worker
