#include "worker/backend/cuda/open_card.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

using kernels::cuda::DeviceInfo;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr CardCount kFine = {.count = 2, .driver_version = 13000, .runtime_version = 13000};

TEST(OpenCard, EachObstacleHasALineOfItsOwn) {
  EXPECT_EQ(Obstacle(kFine), "");
  CardCount cards = kFine;
  cards.error = cudaErrorInsufficientDriver;
  cards.driver_version = 12020;
  EXPECT_EQ(Obstacle(cards), "the driver serves CUDA 12.2; this build needs one for CUDA 13.0 or later");
  cards.driver_version = 0;
  EXPECT_EQ(Obstacle(cards), "no CUDA driver is installed (libcuda.so.1)");
  cards = {.error = cudaErrorNoDevice, .driver_version = 13000, .runtime_version = 13000};
  EXPECT_THAT(Obstacle(cards), HasSubstr("sees no card"));
  cards.error = cudaErrorSystemNotReady;
  EXPECT_THAT(Obstacle(cards), HasSubstr("the CUDA driver does not start: "));
}

TEST(OpenCard, ACardThatCannotServeIsNamed) {
  DeviceInfo card{};
  card.name = "NVIDIA T4";
  card.capability = 75;
  EXPECT_EQ(Obstacle(card, cudaSuccess), "NVIDIA T4 has compute capability 7.5; 8.0 is needed");
  card.name = "NVIDIA B200";
  card.capability = 100;
  EXPECT_EQ(Obstacle(card, cudaSuccess), "");
  EXPECT_THAT(Obstacle(card, cudaErrorNoKernelImageForDevice),
              AllOf(HasSubstr("no code for NVIDIA B200, compute capability 10.0"),
                    HasSubstr("RIDGE_CUDA_ARCHITECTURES")));
  EXPECT_THAT(Obstacle(card, cudaErrorECCUncorrectable),
              HasSubstr("NVIDIA B200 does not run its first kernel"));
}

TEST(OpenCard, ADescriptionHasMemoryAndClocks) {
  DeviceInfo card{};
  card.name = "NVIDIA A10";
  card.capability = 86;
  card.memory_bytes = int64_t{22731} << 20;
  card.num_sms = 72;
  card.sm_clock_mhz = 1695;
  card.memory_clock_mhz = 6251;
  card.driver_version = 13000;
  EXPECT_EQ(
      Describe(card),
      "NVIDIA A10 (sm_86, 22731 MiB, 72 SMs at up to 1695 MHz, memory at 6251 MHz, driver for CUDA 13.0)");
}

}  // namespace
}  // namespace ridge::worker
