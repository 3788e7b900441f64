#include "bench/roofline/hardware_page.h"

#include <fstream>
#include <iterator>
#include <string>

#include "bench/roofline/model_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/model/open_model.h"

namespace ridge::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

worker::ModelConfig Config(const std::string& name) {
  return (*worker::OpenModel("synthetic:" + name))->config();
}

TEST(HardwarePage, ShowsTheArithmeticOfTheSeries) {
  const std::string page = HardwarePage(Config("qwen2.5-1.5b"), *FindDataSheet("a10"), {});
  EXPECT_THAT(page, HasSubstr("| parameters | 1,543,714,304 |"));
  EXPECT_THAT(page, HasSubstr("| weights | 3.09 GB (2.88 GiB) |"));
  EXPECT_THAT(page, HasSubstr("| K/V of a token | 28,672 bytes (28.0 KiB) |"));
  EXPECT_THAT(page, HasSubstr("| the same without grouped queries | 168.0 KiB | 6 times as much |"));
  EXPECT_THAT(page, HasSubstr("| floor of a decode step at batch 1 | 5.15 ms = 194 tokens/s |"));
  EXPECT_THAT(page, HasSubstr("| ridge point | 208 operations a byte"));
  EXPECT_THAT(page, HasSubstr("| 16 | 36,736 | 271 | 99.3 % |"));
  EXPECT_THAT(page, HasSubstr("| 4096 | 1,081,216 | 4,351 | 99.6 % |"));
  EXPECT_THAT(page, HasSubstr("| NVIDIA L4 | 22.5 | 300 |"));
  EXPECT_THAT(page, Not(HasSubstr("Measured beside predicted")));
}

TEST(HardwarePage, GradesWhatWasMeasured) {
  const std::string page = HardwarePage(Config("qwen2.5-1.5b"), *FindDataSheet("a10"),
                                        {{"cached, p16-x1", 1, 16, 256, 0.0103, 0.0103},
                                         {"one token", 1, 16, 1, 0.0103, 0},
                                         {"batched, p256-x8", 8, 256, 32, 0.1, 0.0103}});
  EXPECT_THAT(page, HasSubstr("| cached, p16-x1 | 10.30 | 5.15 | 0.033 | 10.300 | 5.153 | 0.500 |"));
  EXPECT_THAT(page, HasSubstr("| one token | 10.30 | 5.15 | 0.033 | | | |"));
  // 8 x (256 x 1,310,340,608 x 2 + 233,373,696 x 2 + 172,032 x 256 x 257 / 2) operations at 125 TFLOPS, and
  // (3.087 GB + 8 x 272 x 28,672 bytes) at 600 GB/s.
  EXPECT_THAT(page, HasSubstr("| batched, p256-x8 | 100.00 | 43.33 | 0.433 | 10.300 | 5.250 | 0.510 |"));
}

TEST(Pages, InDocsAreTheOnesThatAreWritten) {
  const auto read = [](const char* path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const DataSheet card = *FindDataSheet("a10");
  EXPECT_EQ(read(RIDGE_SOURCE_DIR "/docs/hardware.md"), HardwarePage(Config("qwen2.5-1.5b"), card, {}));
  EXPECT_EQ(read(RIDGE_SOURCE_DIR "/docs/model.html"), ModelPage(Config("qwen2.5-1.5b"), card));
}

TEST(ModelPage, HoldsAllItNeeds) {
  const std::string page = ModelPage(Config("qwen3-0.6b"), *FindDataSheet("a10"));
  EXPECT_THAT(page, Not(HasSubstr("http")));
  const size_t begin = page.find("const M = ") + 10;
  const nlohmann::json data = nlohmann::json::parse(page.substr(begin, page.find(";\n", begin) - begin));
  EXPECT_EQ(data["layers"], 28);
  double weights = 0;
  for (const auto& part : data["layer"]) weights += part["weights"].get<double>();
  // q, k, v and o of 16 and 8 heads of 128, the MLP of 3,072, two norms; 2 bytes each.
  EXPECT_EQ(weights, 2.0 * (1024 * (2048 + 2 * 1024) + 2048 * 1024 + 3 * 1024 * 3072 + 2 * 1024));
}

}  // namespace
}  // namespace ridge::bench
