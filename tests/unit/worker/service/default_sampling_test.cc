#include "worker/service/default_sampling.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(DefaultSamplingTest, TakesWhatTheModelGives) {
  const absl::StatusOr<SamplingParams> sampling = SamplingFromJson(
      R"({"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1,
          "presence_penalty": 1.5, "frequency_penalty": -0.5})");
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_FLOAT_EQ(sampling->temperature, 0.7f);
  EXPECT_FLOAT_EQ(sampling->top_p, 0.8f);
  EXPECT_EQ(sampling->top_k, 20);
  EXPECT_EQ(sampling->min_p, 0.0f);
  EXPECT_FLOAT_EQ(sampling->repetition_penalty, 1.1f);
  EXPECT_EQ(sampling->presence_penalty, 1.5f);
  EXPECT_EQ(sampling->frequency_penalty, -0.5f);
}

TEST(DefaultSamplingTest, WhatChangesNoOutputIsIgnored) {
  const absl::StatusOr<SamplingParams> sampling = SamplingFromJson(
      R"({"_from_model_config": true, "transformers_version": "4.51.0", "bos_token_id": 1, "pad_token_id": 2,
          "eos_token_id": [2, 3], "use_cache": false, "cache_implementation": "static", "length_penalty": 2.0,
          "num_beams": 1, "typical_p": 1.0, "min_length": 0, "guidance_scale": 1.0, "token_healing": false,
          "suppress_tokens": [], "stop_strings": null, "generation_kwargs": {}, "a_new_key": null,
          "max_new_tokens": 2048, "temperature": 0.5})");
  ASSERT_TRUE(sampling.ok()) << sampling.status();
  EXPECT_EQ(sampling->temperature, 0.5f);
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
      {R"({"bad_words_ids": [[5, 6]]})", "bad_words_ids: [[5,6]]: not supported yet"},
      {R"({"suppress_tokens": [1]})", "suppress_tokens: [1]: not supported yet"},
      {R"({"begin_suppress_tokens": [1]})", "begin_suppress_tokens: [1]: not"},
      {R"({"sequence_bias": [[[1], -5.0]]})", "sequence_bias: "},
      {R"({"forced_eos_token_id": 2})", "forced_eos_token_id: 2: not supported yet"},
      {R"({"stop_strings": ["\u00e9\n"]})", "stop_strings: [\"\\u00e9\\n\"]: not supported yet"},
      {R"({"penalty_alpha": 0.6})", "penalty_alpha: 0.6: not supported yet"},
      {R"({"guidance_scale": 1.5})", "guidance_scale: 1.5: not supported yet"},
      {R"({"exponential_decay_length_penalty": [15, 1.6]})", "exponential_decay_length_penalty: [15,1.6]: "},
      {R"({"num_return_sequences": 2})", "num_return_sequences: 2: not supported yet"},
      {R"({"min_new_tokens": 3})", "min_new_tokens: 3: not supported yet"},
      {R"({"no_repeat_ngram_size": "3"})", "no_repeat_ngram_size: "},
      {R"({"temprature": 0.5})", "temprature: not a key that is known here"},
      {R"({"a\nb": 1})", "a\\nb: not a key that is known here"},
      {R"({"do_sample": "yes"})", "do_sample: neither true nor false"},
      {R"({"presence_penalty": 3})", "presence_penalty: not a number in -2 to 2"},
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

TEST(DefaultSamplingTest, WhatIsNoFileIsNamedToo) {
  const std::string directory = testing::TempDir() + "default_sampling_of_a_directory";
  std::filesystem::create_directories(directory + "/generation_config.json");
  EXPECT_THAT(std::string(SamplingFromModel(directory).status().message()),
              AllOf(StartsWith("--default_sampling: "),
                    HasSubstr(directory + "/generation_config.json: not a regular file")));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace ridge::worker
