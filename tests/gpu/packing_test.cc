#include "kernels/cuda/packing.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/device_buffer.h"
#include "worker/model/open_model.h"
#include "worker/model/synthetic.h"

namespace ridge::kernels::cuda {
namespace {

using gpu_test::DeviceBuffer;
using worker::SyntheticSource;
using worker::TensorId;
using worker::TensorRole;

TEST(Packing, RowsFromTheHostStandWhereTheIndexSays) {
  constexpr int64_t kRows = 40, kColumns = 48;
  std::vector<Half> rows(kRows * kColumns);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<Half>(i);
  const DeviceBuffer<Half> device(rows);
  DeviceBuffer<Half> packed(PackedSize(2 * kRows, kColumns));
  // As gate and up, in two parts.
  for (RowPlacement placement : {RowPlacement::kGate, RowPlacement::kUp}) {
    const PackTarget target = {packed.data(), kColumns, 0, placement};
    ASSERT_CUDA_OK(LaunchPackRows(device.data(), 0, 16, target, nullptr));
    ASSERT_CUDA_OK(LaunchPackRows(device.data() + 16 * kColumns, 16, kRows - 16, target, nullptr));
  }
  const std::vector<Half> result = packed.Download();
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = 0; column < kColumns; ++column) {
      for (RowPlacement placement : {RowPlacement::kGate, RowPlacement::kUp}) {
        const int64_t index = PackedIndex(PackedRow(placement, row), column, kColumns);
        ASSERT_EQ(result[static_cast<size_t>(index)], rows[static_cast<size_t>(row * kColumns + column)]);
      }
    }
  }
}

TEST(Packing, SyntheticTensorsAreTheCpusBits) {
  worker::ModelConfig config = worker::OpenModel("synthetic:qwen2.5-0.5b").value()->config();
  config.vocab_size = 1000;
  const SyntheticSource source(config, 5);
  for (TensorId id : {TensorId{TensorRole::kTokenEmbedding}, TensorId{TensorRole::kKey, 3},
                      TensorId{TensorRole::kDown, 23}, TensorId{TensorRole::kMlpNorm, 1}}) {
    const worker::TensorShape shape = ShapeOf(config, id);
    std::vector<Half> expected(static_cast<size_t>(shape.size()));
    ASSERT_TRUE(source.ReadRows(id, 0, shape.rows, absl::MakeSpan(expected)).ok());
    DeviceBuffer<Half> packed(PackedSize(shape.rows, shape.cols));
    const worker::GeneratedTensor tensor = *source.Generated(id);
    ASSERT_CUDA_OK(LaunchPackSynthetic({tensor.key, tensor.scale, tensor.offset, tensor.shift}, shape.rows,
                                       {packed.data(), shape.cols, 0, RowPlacement::kPlain}, nullptr));
    const std::vector<Half> result = packed.Download();
    for (int64_t i = 0; i < shape.size(); ++i) {
      ASSERT_EQ(result[static_cast<size_t>(PackedIndex(i / shape.cols, i % shape.cols, shape.cols))],
                expected[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace
}  // namespace ridge::kernels::cuda
