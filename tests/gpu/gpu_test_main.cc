// main() of the tests that need a card: where there is none, every test is skipped and says why.
#include <cstdio>

#include "gtest/gtest.h"
#include "kernels/cuda/device.h"

namespace {

class CardEnvironment : public testing::Environment {
 public:
  void SetUp() override {
    if (ridge::kernels::cuda::DeviceCount() == 0) GTEST_SKIP() << "no CUDA device: skipped";
    ridge::kernels::cuda::DeviceInfo info;
    ASSERT_EQ(ridge::kernels::cuda::GetDeviceInfo(&info), cudaSuccess);
    if (info.capability < ridge::kernels::cuda::kMinCapability) {
      GTEST_SKIP() << info.name << " has compute capability " << info.capability / 10 << '.'
                   << info.capability % 10 << ", 8.0 is needed: skipped";
    }
    std::printf("card: %s, sm_%d, %d SMs\n", info.name.c_str(), info.capability, info.num_sms);
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::AddGlobalTestEnvironment(new CardEnvironment);
  return RUN_ALL_TESTS();
}
