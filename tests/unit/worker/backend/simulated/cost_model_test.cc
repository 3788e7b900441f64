#include "worker/backend/simulated/cost_model.h"

#include "gtest/gtest.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

ModelConfig Qwen() {
  return OpenModel("synthetic:qwen2.5-1.5b").value()->config();
}

StepPlan Decode(int32_t sequences, int32_t position) {
  StepPlan plan;
  for (SlotId slot = 0; slot < sequences; ++slot) plan.segments.push_back({slot, position, 1, true, 0, 1});
  return plan;
}

double DeviceMs(const SimulatedCard& card, const StepPlan& plan, bool split = false, bool replay = false) {
  return static_cast<double>(CostModel(card, Qwen(), split, replay).Of(plan).device_ns) * 1e-6;
}

TEST(CostModelTest, ReadsEveryWeightOnceAStep) {
  SimulatedCard card;
  card.weight_bytes_per_second = 600e9;
  // The published 3.09 GB / 600 GB/s = 5.15 ms.
  EXPECT_NEAR(DeviceMs(card, Decode(1, 0)), 5.146, 1e-3);
  EXPECT_NEAR(DeviceMs(card, Decode(32, 4000)), 5.146, 1e-3);
}

TEST(CostModelTest, CountsTheMultiplicationsOfRowsAndOutputs) {
  SimulatedCard card;
  card.flops_per_second = 1e12;
  StepPlan plan;
  plan.segments = {{0, 0, 100, false, 0, 0}};
  // 2 x 1,310,340,608 a row, but for the norms and biases, which count as parameters.
  EXPECT_NEAR(DeviceMs(card, plan), 100 * 2 * 1310.340608e-3, 0.2);
  const double without = DeviceMs(card, plan);
  plan.segments[0].num_outputs = 2;
  EXPECT_NEAR(DeviceMs(card, plan) - without, 2 * 2 * 233.373696e-3, 1e-3);
  plan.padded_rows = 50;
  EXPECT_NEAR(DeviceMs(card, plan), 1.5 * without + 4 * 233.373696e-3, 1e-3);
}

TEST(CostModelTest, AttentionOfPromptsIsArithmeticAndOfDecodingIsReading) {
  SimulatedCard card;
  card.prefill_attention_flops = 1e12;
  card.attention_bytes_per_second = 286720e6;  // ten positions a microsecond
  card.one_pass_transfers = 10;
  card.rectangle_transfers = 20;
  card.split_transfers = 1;
  StepPlan prompt;
  prompt.segments = {{0, 0, 1000, false, 0, 1}};
  // 86,016 a squared token, as half of 172,032 a pair.
  EXPECT_NEAR(DeviceMs(card, prompt), 86016e-9 * 1000 * 1001, 1e-3);
  EXPECT_NEAR(DeviceMs(card, Decode(4, 999)), 4.0, 1e-3);
  EXPECT_NEAR(DeviceMs(card, Decode(4, 999), true), 0.4, 1e-3);
  StepPlan padded = Decode(4, 999);
  padded.padded_rows = 3;
  padded.padded_width = 2000;
  padded.padded_slots = {4, 5, 6};
  EXPECT_NEAR(DeviceMs(card, padded), 28.0, 1e-3);
}

TEST(CostModelTest, InOnePassTheWidestRowIsWaitedFor) {
  SimulatedCard card;
  card.walk_bytes_per_second = 14336e6;  // a position of one of two KV heads a microsecond
  StepPlan plan = Decode(4, 99);
  EXPECT_NEAR(DeviceMs(card, plan), 0.1, 1e-3);
  plan.segments[2].first_position = 999;
  EXPECT_NEAR(DeviceMs(card, plan), 1.0, 1e-3);
  EXPECT_NEAR(DeviceMs(card, plan, true), 0, 1e-6);
  plan.padded_width = 3000;
  EXPECT_NEAR(DeviceMs(card, plan), 3.0, 1e-3);
  card.attention_bytes_per_second = 28672e6;  // all of them together, a position a microsecond
  card.rectangle_transfers = 1;
  EXPECT_NEAR(DeviceMs(card, plan), 12.0, 1e-3);
}

TEST(CostModelTest, LaunchesTakeTheHostOnAStreamAndTheDeviceBetweenKernels) {
  SimulatedCard card;
  card.launches_per_layer = 40;
  card.launches_per_step = 3;
  card.launch_us = 16.5;
  card.stream_launch_us = 2;
  card.replay_launch_us = 1;
  card.step_us = 100;
  const StepCost stream = CostModel(card, Qwen(), false, false).Of(Decode(1, 0));
  EXPECT_EQ(stream.launch_ns, 1123 * 16500);
  EXPECT_EQ(stream.device_ns, 1123 * 2000);
  EXPECT_EQ(stream.prepare_ns, 100'000);
  const StepCost replayed = CostModel(card, Qwen(), false, true).Of(Decode(1, 0));
  EXPECT_EQ(replayed.launch_ns, 0);
  EXPECT_EQ(replayed.device_ns, 1123 * 1000);
  // Prompts are not replayed.
  StepPlan prompt = Decode(4, 0);
  prompt.segments[1] = {1, 0, 16, false, 0, 1};
  const StepCost mixed = CostModel(card, Qwen(), false, true).Of(prompt);
  EXPECT_EQ(mixed.launch_ns, 1123 * 16500);
  EXPECT_EQ(mixed.device_ns, 1123 * 2000);
}

// A pass over one token, pipelined, as cuda-bench and `ridge-bench overhead` measured it.
TEST(CostModelTest, TheH200sPassesTakeWhatWasMeasured) {
  const SimulatedCard card = LoadCard("h200").value();
  EXPECT_NEAR(DeviceMs(card, Decode(1, 15), true, true), 1.093, 0.02);
  EXPECT_NEAR(DeviceMs(card, Decode(1, 255), true, true), 1.110, 0.03);
  EXPECT_NEAR(DeviceMs(card, Decode(1, 0), false, false), 1.319, 0.02);
  EXPECT_NEAR(DeviceMs(card, Decode(1, 4095), false, false), 3.490, 0.05);
  EXPECT_EQ(CostModel(card, Qwen(), true, true).Of(Decode(1, 0)).launches, 3);
  EXPECT_EQ(CostModel(card, Qwen(), false, false).Of(Decode(1, 0)).launches, 145);
}

TEST(CostModelTest, AGraphTakesNoLongerThanAStreamOnAnyCard) {
  for (const char* name : {"a10", "h200", "zero"}) {
    const SimulatedCard card = LoadCard(name).value();
    EXPECT_LE(card.replay_launch_us, card.stream_launch_us) << name;
  }
}

TEST(TimelineTest, ADeviceWorksWhileTheHostLaunchesAndPreparesTheNextStep) {
  Timeline timeline;
  // The host is slower: its launches end the step.
  EXPECT_EQ(timeline.Add(1000, {10, 100, 30, 1}), 1110);
  // Prepared while the step before runs; the device goes on without a gap.
  EXPECT_EQ(timeline.Add(1020, {10, 20, 500, 1}), 1620);
  EXPECT_EQ(timeline.Add(1120, {10, 20, 500, 1}), 2120);
  // Idle since.
  EXPECT_EQ(timeline.Add(5000, {10, 20, 500, 1}), 5510);
}

}  // namespace
}  // namespace ridge::worker
