#include "worker/model/synthetic.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/half.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

using testing::HasSubstr;

std::vector<Half> Read(const WeightSource& source, TensorId id, int64_t row_begin, int64_t row_count) {
  std::vector<Half> rows(static_cast<size_t>(row_count * ShapeOf(source.config(), id).cols));
  EXPECT_TRUE(source.ReadRows(id, row_begin, row_count, absl::MakeSpan(rows)).ok());
  return rows;
}

double Deviation(const std::vector<Half>& values) {
  double sum = 0, squares = 0;
  for (Half half : values) {
    const double x = kernels::HalfToFloat(half);
    sum += x;
    squares += x * x;
  }
  const double mean = sum / static_cast<double>(values.size());
  return std::sqrt(squares / static_cast<double>(values.size()) - mean * mean);
}

TEST(Synthetic, HasTheParametersOfTheRealModels) {
  EXPECT_EQ(OpenModel("synthetic:smollm2-135m").value()->config().num_parameters(), 134'515'008);
  EXPECT_EQ(OpenModel("synthetic:qwen2.5-0.5b").value()->config().num_parameters(), 494'032'768);
  EXPECT_EQ(OpenModel("synthetic:qwen2.5-1.5b").value()->config().num_parameters(), 1'543'714'304);
  EXPECT_EQ(OpenModel("synthetic:qwen2.5-3b").value()->config().num_parameters(), 3'085'938'688);
  EXPECT_EQ(OpenModel("synthetic:qwen2.5-7b").value()->config().num_parameters(), 7'615'616'512);
  EXPECT_EQ(OpenModel("synthetic:llama-3.2-1b").value()->config().num_parameters(), 1'235'814'400);
  EXPECT_EQ(OpenModel("synthetic:qwen3-0.6b").value()->config().num_parameters(), 596'049'920);
  EXPECT_EQ(OpenModel("synthetic:qwen2.5-1.5b").value()->config().kv_bytes_per_token() * 16, 448 * 1024);
}

// The bits are a promise to other devices: these come from the definition in synthetic.h by numpy.
TEST(Synthetic, BitsAreFrozen) {
  const auto source = OpenModel("synthetic:smollm2-135m").value();
  const std::vector<Half> query = Read(*source, {TensorRole::kQuery, 3}, 7, 1);
  EXPECT_THAT(std::vector<Half>(query.begin(), query.begin() + 4),
              testing::ElementsAre(0xADA8, 0xA964, 0xAD90, 0xAB6F));
  const std::vector<Half> norm = Read(*source, {TensorRole::kFinalNorm}, 0, 1);
  EXPECT_THAT(std::vector<Half>(norm.begin(), norm.begin() + 4),
              testing::ElementsAre(0x3C2D, 0x3B81, 0x3C23, 0x3C43));
}

TEST(Synthetic, PiecesEqualTheWhole) {
  const auto source = OpenModel("synthetic:qwen2.5-0.5b").value();
  const std::vector<Half> whole = Read(*source, {TensorRole::kKey, 5}, 0, 128);
  std::vector<Half> pieces = Read(*source, {TensorRole::kKey, 5}, 0, 50);
  for (Half half : Read(*source, {TensorRole::kKey, 5}, 50, 78)) pieces.push_back(half);
  EXPECT_EQ(whole, pieces);
}

TEST(Synthetic, TensorsDifferAndHaveTheirScales) {
  const auto source = OpenModel("synthetic:smollm2-135m").value();
  const std::vector<Half> first = Read(*source, {TensorRole::kValue, 0}, 0, 192);
  EXPECT_NE(first, Read(*source, {TensorRole::kValue, 1}, 0, 192));
  EXPECT_NE(first, Read(*source, {TensorRole::kKey, 0}, 0, 192));
  EXPECT_NEAR(Deviation(first), 1.0 / 24, 2e-4);
  EXPECT_NEAR(Deviation(Read(*source, {TensorRole::kTokenEmbedding}, 0, 256)), 2.0 / 24, 4e-4);
  for (Half half : Read(*source, {TensorRole::kMlpNorm, 9}, 0, 1)) {
    EXPECT_GE(kernels::HalfToFloat(half), 0.875f);
    EXPECT_LE(kernels::HalfToFloat(half), 1.125f);
  }
}

TEST(Synthetic, SeedAndShapeDecideTheFingerprint) {
  const ModelConfig config = OpenModel("synthetic:smollm2-135m").value()->config();
  EXPECT_EQ(SyntheticSource(config).Fingerprint(), SyntheticSource(config).Fingerprint());
  EXPECT_NE(SyntheticSource(config).Fingerprint(), SyntheticSource(config, 1).Fingerprint());
  ModelConfig other = config;
  other.num_layers = 2;
  EXPECT_NE(SyntheticSource(config).Fingerprint(), SyntheticSource(other).Fingerprint());
}

TEST(OpenModel, ErrorsStartWithThePath) {
  EXPECT_THAT(std::string(OpenModel("synthetic:gpt-5").status().message()),
              HasSubstr("synthetic:gpt-5: unknown; there are smollm2-135m"));
  EXPECT_EQ(OpenModel("/nowhere/x.gguf").status().message(), "/nowhere/x.gguf: no such file or directory");
  EXPECT_THAT(std::string(OpenModel(testing::TempDir()).status().message()), HasSubstr("/config.json: "));
  EXPECT_THAT(
      std::string(
          OpenModel(std::string(RIDGE_TEST_DATA_DIR) + "/tiny-llama/model.safetensors").status().message()),
      HasSubstr("give the directory"));
  EXPECT_THAT(
      std::string(OpenModel(std::string(RIDGE_TEST_DATA_DIR) + "/tiny-llama/README.md").status().message()),
      HasSubstr("README.md: not a GGUF file"));
}

TEST(OpenModel, OpensADirectory) {
  const auto source = OpenModel(std::string(RIDGE_TEST_DATA_DIR) + "/tiny-llama");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->config().name, "tiny-llama");
}

}  // namespace
}  // namespace ridge::worker
