#include "bench/measure/device_name.h"

#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

TEST(NamesDevice, TakesNoCardForAnother) {
  const char* a10g = "cuda: NVIDIA A10G (sm_86, 22731 MiB, 80 SMs)";
  EXPECT_FALSE(NamesDevice(a10g, "NVIDIA A10"));  // as in the series' first runs
  EXPECT_TRUE(NamesDevice(a10g, "NVIDIA A10G"));
  EXPECT_TRUE(NamesDevice("cuda: NVIDIA A10 (sm_86)", "NVIDIA A10"));
  EXPECT_TRUE(NamesDevice("simulated: NVIDIA A10, the series' engines", "A10"));
  EXPECT_FALSE(NamesDevice("cuda: NVIDIA A100-SXM4-80GB", "A10"));
  EXPECT_FALSE(NamesDevice("cuda: NVIDIA L40S", "L4"));
  EXPECT_FALSE(NamesDevice("cuda: NVIDIA L40S", "40S"));
  EXPECT_TRUE(NamesDevice("A10G beside an A10", "A10"));
  EXPECT_TRUE(NamesDevice("cuda: NVIDIA H200", "cuda: "));
  EXPECT_TRUE(NamesDevice("anything", ""));
}

TEST(CheckDevice, SaysBothNames) {
  EXPECT_TRUE(CheckDevice("H200", "cuda: NVIDIA H200").ok());
  EXPECT_EQ(CheckDevice("NVIDIA A10", "cuda: NVIDIA A10G").message(),
            "--expect_device: this is \"cuda: NVIDIA A10G\", not \"NVIDIA A10\"");
}

}  // namespace
}  // namespace ridge::bench
