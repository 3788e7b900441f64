#include "kernels/cuda/device.h"

#include "gtest/gtest.h"
#include "tests/gpu/device_buffer.h"

namespace ridge::kernels::cuda {
namespace {

TEST(Device, SaysWhatItIs) {
  DeviceInfo info;
  ASSERT_CUDA_OK(GetDeviceInfo(&info));
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.capability, kMinCapability);
  EXPECT_GT(info.num_sms, 0);
  EXPECT_GT(info.memory_bytes, int64_t{1} << 30);
  EXPECT_GE(info.shared_bytes_per_block, 99 << 10);
  EXPECT_GE(info.driver_version, info.runtime_version / 1000 * 1000);
}

TEST(Device, RunsTheCodeOfThisBinary) {
  EXPECT_CUDA_OK(ProbeLaunch(nullptr));
}

TEST(Device, ACooperativeLaunchHasABlockAMultiprocessorAndARefusalLeavesNothing) {
  DeviceInfo info;
  ASSERT_CUDA_OK(GetDeviceInfo(&info));
  EXPECT_CUDA_OK(ProbeCooperativeLaunch(info.num_sms, nullptr));
  EXPECT_EQ(ProbeCooperativeLaunch(info.num_sms + 1, nullptr), cudaErrorCooperativeLaunchTooLarge);
  EXPECT_CUDA_OK(cudaGetLastError());
  EXPECT_CUDA_OK(ProbeLaunch(nullptr));
}

}  // namespace
}  // namespace ridge::kernels::cuda
