// GGUF files written by the `gguf` package (tests/golden/gguf): its values, and a checkpoint that has been
// converted.
#include <bit>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/model/file_builders.h"
#include "worker/model/gguf.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

using testing::HasSubstr;

std::string Golden(const std::string& name) {
  return std::string(RIDGE_TEST_DATA_DIR) + "/" + name;
}

TEST(GgufGolden, EveryTypeHasTheBitsOfThePackage) {
  const auto file = GgufFile::Open(Golden("gguf/types.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  int types = 0;
  for (const auto& [name, tensor] : (*file)->tensors()) {
    const StoredTensor* recorded = FindTensor((*file)->tensors(), name + ".values");
    if (recorded == nullptr) continue;
    ++types;
    EXPECT_EQ(tensor.type->name, name);
    ASSERT_EQ(recorded->cols, tensor.cols);
    std::vector<float> values(static_cast<size_t>(tensor.cols)), expected(values.size());
    tensor.type->dequantize(tensor.data.data(), tensor.cols / tensor.type->block_elements, values.data());
    std::memcpy(expected.data(), recorded->data.data(), recorded->data.size());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected[i])) << name << " " << i;
    }
  }
  EXPECT_EQ(types, 12);
}

// The file that a converter makes of a checkpoint holds the same model.
TEST(GgufGolden, ConvertedCheckpointsAreTheSameModel) {
  for (const std::string name : {"tiny-llama3", "tiny-qwen3"}) {
    const auto directory = OpenModel(Golden(name));
    const auto converted = OpenModel(Golden("gguf/" + name + ".gguf"));
    ASSERT_TRUE(directory.ok()) << directory.status();
    ASSERT_TRUE(converted.ok()) << converted.status();
    ModelConfig config = (*directory)->config(), other = (*converted)->config();
    ASSERT_EQ(config.rope_divisors.size(), other.rope_divisors.size());
    for (size_t i = 0; i < config.rope_divisors.size(); ++i)
      EXPECT_NEAR(config.rope_divisors[i], other.rope_divisors[i], 1e-6);
    other.rope_divisors = config.rope_divisors;
    EXPECT_EQ(CanonicalText(config), CanonicalText(other));
    for (TensorId id : TensorsOf(config)) {
      const TensorShape shape = ShapeOf(config, id);
      std::vector<Half> expected(static_cast<size_t>(shape.size())), got(expected.size());
      ASSERT_TRUE((*directory)->ReadRows(id, 0, shape.rows, absl::MakeSpan(expected)).ok());
      ASSERT_TRUE((*converted)->ReadRows(id, 0, shape.rows, absl::MakeSpan(got)).ok());
      EXPECT_EQ(got, expected) << static_cast<int>(id.role) << " of layer " << id.layer;
    }
  }
}

}  // namespace
}  // namespace ridge::worker
