// main() of the tests that need a card: where there is none, all are skipped with the reason.
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "kernels/cuda/device.h"

namespace {

// Why this card cannot run the tests; empty where it can.
std::string Obstacle() {
  using namespace ridge::kernels::cuda;
  if (DeviceCount() == 0) return "no CUDA device";
  DeviceInfo info;
  if (const cudaError_t error = GetDeviceInfo(&info); error != cudaSuccess) return cudaGetErrorString(error);
  if (info.capability < kMinCapability) return info.name + " is older than compute capability 8.0";
  std::printf("card: %s, sm_%d, %d SMs\n", info.name.c_str(), info.capability, info.num_sms);
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!testing::GTEST_FLAG(list_tests)) {
    if (const std::string obstacle = Obstacle(); !obstacle.empty()) {
      std::printf("[  SKIPPED ] all tests: %s\n", obstacle.c_str());  // what ctest looks for
      return 0;
    }
  }
  return RUN_ALL_TESTS();
}
