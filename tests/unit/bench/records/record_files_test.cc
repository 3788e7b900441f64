#include "bench/records/record_files.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/records/gzip_file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

class RecordFilesTest : public ::testing::Test {
 protected:
  RecordFilesTest() {
    folder_ = absl::StrCat(::testing::TempDir(), "/",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    context_.engine = "cached";
    context_.engine_params = "{}";
    context_.model = "a model";
    context_.device_name = "card";
  }
  ~RecordFilesTest() override { std::filesystem::remove_all(folder_); }

  static RunRecord Run(const std::string& workload, int index, std::vector<int32_t> ids) {
    RunRecord record;
    record.workload = workload;
    record.run_index = index;
    record.ids = std::move(ids);
    record.token_s.assign(record.ids.size(), 1.0);
    return record;
  }

  std::string RunLines() const { return *ReadGzip(absl::StrCat(folder_, "/runs.jsonl.gz")); }

  std::string folder_;
  RunContext context_;
};

TEST_F(RecordFilesTest, KnowsWhatIsThereWhenOpenedAgain) {
  {
    RecordFiles files = *RecordFiles::Open(folder_, context_);
    EXPECT_FALSE(files.HasRun("p16-x1", 0));
    ASSERT_TRUE(files.AddRun({Run("p16-x1", 0, {1, 2})}).ok());
    ArrivalRecord first, last;
    first.rate = last.rate = 0.5;
    first.arrival_s = 1;
    first.end_s = 3;
    first.completion_tokens = 2;
    last.arrival_s = 2;
    last.end_s = 5;
    last.completion_tokens = 2;
    ASSERT_TRUE(files.AddPass({first, last}, {{"served", 2}}).ok());
    EXPECT_DOUBLE_EQ(files.ServedRate(0.5, 0, 0), 0.5);  // two from 1 to 5 s
  }
  RecordFiles files = *RecordFiles::Open(folder_, context_);
  EXPECT_TRUE(files.HasRun("p16-x1", 0));
  EXPECT_FALSE(files.HasRun("p16-x1", 1));
  EXPECT_FALSE(files.HasRun("p64-x1", 0));
  EXPECT_TRUE(files.HasPass(0.5, 0, 0));
  EXPECT_DOUBLE_EQ(files.ServedRate(0.5, 0, 0), 0.5);
  const auto pass = nlohmann::json::parse(*ReadGzip(absl::StrCat(folder_, "/passes.jsonl.gz")));
  EXPECT_EQ(pass["rate"], 0.5);
  EXPECT_EQ(pass["served"], 2);
  EXPECT_FALSE(files.HasPass(1, 0, 0));
  EXPECT_FALSE(files.HasPass(0.5, 0, 8));

  context_.engine = "naive";  // another engine has its own runs in the same files
  EXPECT_FALSE(RecordFiles::Open(folder_, context_)->HasRun("p16-x1", 0));
}

TEST_F(RecordFilesTest, AWorkloadTookWhatItsRunsTookEachToItsLastSequence) {
  RunRecord first = Run("p16-x2", -1, {1}), second = first, third = Run("p16-x2", 0, {1});
  first.total_s = 2;
  second.total_s = 3;
  third.total_s = 4;
  RecordFiles files = *RecordFiles::Open(folder_, context_);
  ASSERT_TRUE(files.AddRun({first, second}).ok());
  ASSERT_TRUE(files.AddRun({third}).ok());
  EXPECT_DOUBLE_EQ(files.SecondsOf("p16-x2"), 7);
  EXPECT_DOUBLE_EQ(files.SecondsOf("p16-x1"), 0);
  EXPECT_DOUBLE_EQ(RecordFiles::Open(folder_, context_)->SecondsOf("p16-x2"), 7);
}

TEST_F(RecordFilesTest, WritesTheIdsOfEqualOutputsOnce) {
  for (int index = 0; index < 2; ++index) {
    RecordFiles files = *RecordFiles::Open(folder_, context_);
    ASSERT_TRUE(files.AddRun({Run("p16-x2", index, {1, 2}), Run("p16-x2", index, {1, 2})}).ok());
  }
  const std::string lines = RunLines();
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(lines, "token_ids")).size(), 2);  // one occurrence
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(lines, '\n')).size(), 5);         // four lines
}

TEST_F(RecordFilesTest, RefusesRecordsOfAnotherCardOrModel) {
  ASSERT_TRUE(RecordFiles::Open(folder_, context_)->AddRun({Run("p16-x1", 0, {1})}).ok());
  context_.device_name = "another card";
  const absl::Status status = RecordFiles::Open(folder_, context_).status();
  EXPECT_EQ(status.message(), absl::StrCat(folder_,
                                           "/runs.csv.gz, record 1: device_name is \"card\", this run's is "
                                           "\"another card\""));
}

TEST_F(RecordFilesTest, RefusesOtherColumnsAndBrokenLines) {
  ASSERT_TRUE(RecordFiles::Open(folder_, context_)->AddRun({Run("p16-x1", 0, {1})}).ok());
  const std::string path = absl::StrCat(folder_, "/runs.csv.gz");
  ASSERT_TRUE(AppendGzip(path, "half,a,line").ok());
  EXPECT_TRUE(absl::StrContains(RecordFiles::Open(folder_, context_).status().message(),
                                "runs.csv.gz, record 2: 3 fields"));
  std::filesystem::remove(path);
  ASSERT_TRUE(AppendGzip(path, "other,columns\n").ok());
  EXPECT_EQ(RecordFiles::Open(folder_, context_).status().message(),
            absl::StrCat(path, ": its columns are not those of schema 1"));
}

TEST_F(RecordFilesTest, NamesAFileThatIsDamaged) {
  ASSERT_TRUE(RecordFiles::Open(folder_, context_)->AddRun({Run("p16-x1", 0, {1})}).ok());
  const std::string path = absl::StrCat(folder_, "/runs.csv.gz");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 9);
  EXPECT_EQ(RecordFiles::Open(folder_, context_).status().message(),
            absl::StrCat(path, ": breaks off or is damaged"));
}

}  // namespace
}  // namespace ridge::bench
