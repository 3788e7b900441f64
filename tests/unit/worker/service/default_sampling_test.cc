#include "worker/service/default_sampling.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(DefaultSamplingTest, TakesWhatTheModelGives) {
  const absl::StatusOr<SamplingParams> sampling = SamplingFromJson(
      R"({"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1})");
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_FLOAT_EQ(sampling->temperature, 0.7f);
  EXPECT_FLOAT_EQ(sampling->top_p, 0.8f);
  EXPECT_EQ(sampling->top_k, 20);
  EXPECT_EQ(sampling->min_p, 0.0f);
  EXPECT_FLOAT_EQ(sampling->repetition_penalty, 1.1f);
}

TEST(DefaultSamplingTest, NothingGivenIsOff) {
  const absl::StatusOr<SamplingParams> sampling = SamplingFromJson("{}");
  ASSERT_TRUE(sampling.ok());
  EXPECT_EQ(sampling->temperature, 1.0f);
  EXPECT_EQ(sampling->top_p, 1.0f);
  EXPECT_EQ(sampling->top_k, 0);
}

TEST(DefaultSamplingTest, NoSamplingIsGreedy) {
  EXPECT_EQ(SamplingFromJson(R"({"do_sample": false, "temperature": 0.7})")->temperature, 0.0f);
}

TEST(DefaultSamplingTest, WhatIsNotBuiltOrMakesNoSenseNamesItsKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"repetition_penalty": 0})", "repetition_penalty: not a number"},
      {R"({"num_beams": 4})", "num_beams: 4: not supported yet"},
      {R"({"temperature": -1})", "temperature: not a number in 0 to 100"},
      {R"({"top_p": 0})", "top_p: "},
      {R"({"top_k": "many"})", "top_k: "},
      {R"({"min_p": 2})", "min_p: "},
      {"[]", "not a JSON object"},
      {"{", "not a JSON object"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(std::string(SamplingFromJson(text).status().message()), StartsWith(message)) << text;
  }
}

TEST(DefaultSamplingTest, AMissingFileNamesFlagAndFile) {
  EXPECT_THAT(std::string(SamplingFromModel("/nonexistent").status().message()),
              AllOf(StartsWith("--default_sampling: "), HasSubstr("/nonexistent/generation_config.json")));
}

}  // namespace
}  // namespace ridge::worker
