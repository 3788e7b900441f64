#include "bench/ladder/ladder.h"

#include <filesystem>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "bench/records/csv.h"
#include "bench/records/gzip_file.h"
#include "bench/workload/draw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

using ::testing::HasSubstr;

using Row = std::map<std::string, std::string>;

class LadderTest : public ::testing::Test {
 protected:
  LadderTest() {
    config_.host.model = "synthetic:qwen2.5-1.5b";
    config_.host.device = "simulated:a10-series";
    config_.host.max_batch = 0;
    config_.choices.prefix_cache = "off";
    config_.source_file = RIDGE_SOURCE_DIR "/bench/traces/prompt_source.txt";
    config_.out = absl::StrCat(::testing::TempDir(), "/ladder_",
                               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(config_.out);
  }
  ~LadderTest() override { std::filesystem::remove_all(config_.out); }

  std::vector<Row> Rows(const std::string& engine, const std::string& file) const {
    const std::string text = *ReadGzip(absl::StrCat(config_.out, "/", engine, "/", file));
    absl::string_view rest = text;
    const std::vector<std::string> names = TakeCsvRecord(&rest);
    std::vector<Row> rows;
    while (!rest.empty()) {
      const std::vector<std::string> fields = TakeCsvRecord(&rest);
      Row& row = rows.emplace_back();
      for (size_t i = 0; i < names.size(); ++i) row[names[i]] = fields[i];
    }
    return rows;
  }

  LadderConfig config_;
  std::ostringstream progress_;
};

TEST_F(LadderTest, ClosedRunsOfAllEnginesGiveTheSameTokens) {
  config_.engines = {"naive",   "cached", "batched", "continuous", "paged",
                     "chunked", "fused",  "flash",   "ridge"};
  const absl::Status status =
      Closed(config_, {{UniformDraw(16, 8, 1), UniformDraw(300, 8, 3), MixedDraw(0, 4)}, 1, 1}, progress_);
  ASSERT_TRUE(status.ok()) << status;
  std::vector<Row> rows;
  for (const std::string& engine : config_.engines) {
    for (Row& row : Rows(engine, "runs.csv.gz")) rows.push_back(std::move(row));
  }
  EXPECT_EQ(rows.size(), 9 * 2 * (1 + 3 + 4));
  std::map<std::string, std::string> outputs;  // by workload and sequence
  for (const Row& row : rows) {
    const std::string key = absl::StrCat(row.at("workload"), " ", row.at("sequence_index"));
    const std::string& first = outputs.emplace(key, row.at("output_sha8")).first->second;
    EXPECT_EQ(row.at("output_sha8"), first) << row.at("engine") << " " << key;
  }
  EXPECT_EQ(outputs.size(), 8);
  // The weights' 3,087,428,608 bytes, and two blocks of 458,752 for 16 and 8 tokens.
  const Row alone = Rows("ridge", "runs.csv.gz").front();
  EXPECT_EQ(alone.at("workload"), "p16-x1");
  EXPECT_EQ(alone.at("peak_mem_bytes"), absl::StrCat(3'087'428'608 + 2 * 458'752));
  EXPECT_THAT(progress_.str(), HasSubstr("engine naive on simulated: NVIDIA A10"));
}

TEST_F(LadderTest, WithoutACacheALongPromptSlowsEveryToken) {
  config_.engines = {"naive", "cached"};
  ASSERT_TRUE(Closed(config_, {{UniformDraw(4096, 16, 1)}, 0, 1}, progress_).ok());
  const auto itl_ms = [&](const char* engine) {
    return std::stod(Rows(engine, "runs.csv.gz")[0].at("itl_p50_ms"));
  };
  const double naive_ms = itl_ms("naive"), cached_ms = itl_ms("cached");
  EXPECT_GT(naive_ms, 10 * cached_ms);
}

TEST_F(LadderTest, AnOpenSweepRecordsEveryRequest) {
  config_.engines = {"chunked"};
  PassFlags flags;
  flags.pass.workload = MixedDraw(0, 40);
  flags.rates = {0.5, 100};
  ASSERT_TRUE(ArrivalSweep(config_, flags, progress_).ok());
  const std::vector<Row> rows = Rows("chunked", "arrivals.csv.gz");
  ASSERT_EQ(rows.size(), 80);
  double slow_queue_s = 0, fast_queue_s = 0;
  for (const Row& row : rows) {
    EXPECT_EQ(row.at("end"), "length");
    EXPECT_EQ(row.at("completion_tokens"), row.at("budget"));
    EXPECT_EQ(row.at("max_batch"), "32");
    EXPECT_NE(row.at("queue_s").front(), '-');  // nor -0.000000
    (row.at("rate") == "0.5" ? slow_queue_s : fast_queue_s) += std::stod(row.at("queue_s"));
  }
  EXPECT_LT(slow_queue_s / 40, 0.1);
  EXPECT_GT(fast_queue_s / 40, 0.5);
}

// As a service's client does: GrpcTargetTest.StopsSendingWhereTheServerCannotKeepUp.
TEST_F(LadderTest, SendingEndsWhereMoreThanSoManyAreUnanswered) {
  config_.engines = {"ridge"};
  PassFlags flags;
  flags.pass.workload = UniformDraw(16, 8, 5);
  flags.pass.stop_above = 2;
  flags.rates = {1e5};
  ASSERT_TRUE(ArrivalSweep(config_, flags, progress_).ok());
  std::string ends;
  for (const Row& row : Rows("ridge", "arrivals.csv.gz")) absl::StrAppend(&ends, row.at("end"), " ");
  EXPECT_EQ(ends, "length length length unsent unsent ");
}

TEST_F(LadderTest, RequestsThatWaitForOthersToEndComeWhenTheyAreSent) {
  config_.engines = {"ridge"};
  PassFlags flags;
  flags.pass.workload = UniformDraw(16, 8, 6);
  flags.in_flight = {2};
  ASSERT_TRUE(ArrivalSweep(config_, flags, progress_).ok());
  const std::vector<Row> rows = Rows("ridge", "arrivals.csv.gz");
  EXPECT_EQ(rows[1].at("arrival_s"), "0.000000");
  EXPECT_GT(std::stod(rows[2].at("arrival_s")), 0.01);
  for (const Row& row : rows) {
    EXPECT_EQ(row.at("in_flight"), "2");
    EXPECT_LT(std::stod(row.at("queue_s")), 0.01);
  }
}

TEST_F(LadderTest, RequestsBeyondTheModelsContextAreRefusedWithTheFlagThatHelps) {
  config_.engines = {"ridge"};
  EXPECT_EQ(Closed(config_, {{UniformDraw(40000, 8, 1)}, 0, 1}, progress_).message(),
            "--prompts: p40000-x1 has a request of 40008 tokens, more than the model's context of 32768");
  PassFlags flags;
  flags.pass.workload = UniformDraw(40000, 8, 1);
  flags.rates = {1};
  const std::string longest = "the longest request has 40008 tokens, more than the context of 32768; ";
  EXPECT_EQ(ArrivalSweep(config_, flags, progress_).message(),
            absl::StrCat("--workload: ", longest, "give one with shorter requests"));
  flags.is_trace = true;
  EXPECT_EQ(ArrivalSweep(config_, flags, progress_).message(),
            absl::StrCat("--most_tokens: ", longest, "32768 leaves such out"));
  config_.host.max_context = 50000;  // asked for
  EXPECT_EQ(ArrivalSweep(config_, flags, progress_).message(),
            "--max_context: 50000 tokens are more than the model's context of 32768");
}

TEST_F(LadderTest, AnotherClockIsAnotherMeasurement) {
  config_.engines = {"ridge"};
  PassFlags flags;
  flags.pass.workload = UniformDraw(16, 2, 2);
  flags.rates = {1000};
  ASSERT_TRUE(Closed(config_, {{UniformDraw(16, 2, 1)}, 0, 1}, progress_).ok());
  ASSERT_TRUE(ArrivalSweep(config_, flags, progress_).ok());
  config_.host.virtual_clock = false;
  const std::string rest = absl::StrCat(" in ", config_.out,
                                        "/ridge was measured with true, this run has false; take another "
                                        "--out");
  EXPECT_EQ(Closed(config_, {{UniformDraw(16, 2, 1)}, 0, 1}, progress_).message(),
            absl::StrCat("--virtual_clock: p16-x1", rest));
  EXPECT_EQ(ArrivalSweep(config_, flags, progress_).message(),
            absl::StrCat("--virtual_clock: the pass at 1000/s", rest));
}

TEST_F(LadderTest, RefusesAPoolThatIsLessThanASlot) {
  config_.host.kv_cache_bytes = 1 << 20;  // 36 tokens: two blocks of 458,752 bytes
  config_.engines = {"continuous"};
  const absl::Status status = Closed(config_, {{UniformDraw(100, 8, 1)}, 0, 1}, progress_);
  EXPECT_EQ(status.message(),
            "--kv_cache_bytes: a slot of --max_context, 108 tokens, takes 3211264 bytes; there are 917504");
}

TEST_F(LadderTest, RefusesRequestsThatCanNeverFit) {
  config_.host.kv_cache_bytes = 1 << 20;
  for (const char* engine : {"naive", "cached", "batched", "paged", "ridge"}) {
    config_.engines = {engine};
    const absl::Status status = Closed(config_, {{UniformDraw(100, 8, 1)}, 0, 1}, progress_);
    EXPECT_EQ(
        status.message(),
        "--kv_cache_bytes: prompt and max_tokens need KV memory for 112 tokens; the server has it for 32")
        << engine;
  }
}

TEST_F(LadderTest, RefusesRequestsThatExceedTheContext) {
  config_.engines = {"continuous"};
  config_.host.max_context = 100;
  const absl::Status status = Closed(config_, {{UniformDraw(100, 8, 1)}, 0, 1}, progress_);
  EXPECT_EQ(status.message(), "--max_context: 100 tokens are less than the longest request's 108");
}

TEST_F(LadderTest, RefusesAnotherDeviceThanTheExpectedOne) {
  config_.engines = {"ridge"};
  config_.expect_device = "NVIDIA H200";
  const absl::Status status = Closed(config_, {{UniformDraw(16, 8, 1)}, 0, 1}, progress_);
  EXPECT_EQ(status.message(),
            "--expect_device: this is \"simulated: NVIDIA A10, the series' engines\", not \"NVIDIA H200\"");
  EXPECT_FALSE(std::filesystem::exists(config_.out));
}

}  // namespace
}  // namespace ridge::bench
