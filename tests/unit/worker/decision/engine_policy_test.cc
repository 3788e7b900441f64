#include "worker/decision/engine_policy.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAre;

TEST(EnginePolicyTest, PresetsClimbTheLadder) {
  EXPECT_THAT(PresetNames(), ElementsAre("naive", "cached", "batched", "continuous", "paged", "chunked",
                                         "fused", "flash", "ridge"));
  EXPECT_EQ(PresetPolicy("naive").memory, MemoryPolicy::kScratch);
  EXPECT_EQ(PresetPolicy("chunked").step, StepPolicy::kSeparate);
  EXPECT_EQ(PresetPolicy("fused").step, StepPolicy::kFused);
  EXPECT_EQ(PresetPolicy("fused").attention, AttentionPolicy::kOnePass);
  EXPECT_EQ(PresetPolicy("flash").attention, AttentionPolicy::kSplit);
  EXPECT_FALSE(PresetPolicy("flash").prefix_cache);
  EXPECT_TRUE(PresetPolicy("ridge").prefix_cache);
}

TEST(EnginePolicyTest, EachChoiceOfAPresetCanBeReplaced) {
  const EnginePolicy policy = PolicyOf({.engine = "flash",
                                        .memory = "on_demand",
                                        .admission = "batch",
                                        .prefill = "whole",
                                        .step = "separate",
                                        .decode_attention = "one_pass",
                                        .launch = "graph",
                                        .prefix_cache = "on"})
                                  .value();
  EXPECT_EQ(policy.memory, MemoryPolicy::kOnDemand);
  EXPECT_EQ(policy.admission, AdmissionPolicy::kBatch);
  EXPECT_EQ(policy.prefill, PrefillPolicy::kWhole);
  EXPECT_EQ(policy.step, StepPolicy::kSeparate);
  EXPECT_EQ(policy.attention, AttentionPolicy::kOnePass);
  EXPECT_EQ(policy.launch, LaunchPolicy::kGraph);
  EXPECT_TRUE(policy.prefix_cache);
  EXPECT_EQ(ToString({.engine = "flash", .memory = "slots", .prefix_cache = "off"}),
            "engine=flash memory=slots prefix_cache=off");
}

TEST(EnginePolicyTest, WhatDoesNotGoTogetherNamesItsFlag) {
  const auto message = [](const PolicyNames& names) {
    return std::string(PolicyOf(names).status().message());
  };
  EXPECT_EQ(message({.engine = "turbo"}),
            "--engine: \"turbo\" is not one of naive, cached, batched, continuous, paged, chunked, fused, "
            "flash, ridge");
  EXPECT_EQ(message({.step = "one"}), "--step: \"one\" is not one of separate, fused");
  EXPECT_EQ(message({.engine = "continuous", .memory = "padded"}),
            "--memory: padded needs --admission batch: who joins later has no room");
  EXPECT_EQ(message({.engine = "cached", .prefix_cache = "on"}),
            "--prefix_cache: on needs --memory reserved or on_demand");
}

}  // namespace
}  // namespace ridge::worker
