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
    ASSERT_TRUE(files.AddRun({Run("p16-x1", 0, {1, 2})}, {}).ok());
    ArrivalRecord first, last;
    first.rate = last.rate = 0.5;
    first.arrival_s = 1;
    first.end_s = 3;
    first.completion_tokens = 2;
    last.arrival_s = 2;
    last.end_s = 5;
    last.completion_tokens = 2;
    first.end = last.end = "length";
    ASSERT_TRUE(files.AddPass({first, last}, {{"requests", 2}}, {{"served", 2}}).ok());
    EXPECT_DOUBLE_EQ(files.ServedRate(0.5, 0, 0), 0.5);  // two from 1 to 5 s
  }
  std::optional<RecordFiles> reopened(*RecordFiles::Open(folder_, context_));
  const RecordFiles& files = *reopened;
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

  reopened.reset();
  context_.engine = "naive";  // another engine has its own runs in the same files
  EXPECT_FALSE(RecordFiles::Open(folder_, context_)->HasRun("p16-x1", 0));
}

TEST_F(RecordFilesTest, AWorkloadTookWhatItsRunsTookEachToItsLastSequence) {
  RunRecord first = Run("p16-x2", -1, {1}), second = first, third = Run("p16-x2", 0, {1});
  first.total_s = 2;
  second.total_s = 3;
  third.total_s = 4;
  {
    RecordFiles files = *RecordFiles::Open(folder_, context_);
    ASSERT_TRUE(files.AddRun({first, second}, {}).ok());
    ASSERT_TRUE(files.AddRun({third}, {}).ok());
    EXPECT_DOUBLE_EQ(files.SecondsOf("p16-x2"), 7);
    EXPECT_DOUBLE_EQ(files.SecondsOf("p16-x1"), 0);
  }
  EXPECT_DOUBLE_EQ(RecordFiles::Open(folder_, context_)->SecondsOf("p16-x2"), 7);
}

TEST_F(RecordFilesTest, RefusesRunsOfAWorkloadWithOtherSettings) {
  context_.engine_params = R"({"launch":"stream","max_batch":8,"kv_blocks":100})";
  RunRecord run = Run("p16-x1", 0, {1});
  run.max_new_tokens = 64;
  ASSERT_TRUE(RecordFiles::Open(folder_, context_)->AddRun({run}, {{"new_tokens", 64}}).ok());
  const std::string rest = "; take another --out";
  const auto check = [&](const char* params, int new_tokens, const char* workload = "p16-x1") {
    context_.engine_params = params;
    return std::string(
        RecordFiles::Open(folder_, context_)->CheckRuns(workload, {{"new_tokens", new_tokens}}).message());
  };
  EXPECT_EQ(check(R"({"launch":"stream","max_batch":8,"kv_blocks":99})", 64), "");  // less memory was free
  EXPECT_EQ(
      check(R"({"launch":"stream","max_batch":8})", 32),
      absl::StrCat("--new_tokens: p16-x1 in ", folder_, " was measured with 64, this run has 32", rest));
  EXPECT_EQ(check(R"({"launch":"graph","max_batch":8})", 64),
            absl::StrCat("--launch: p16-x1 in ", folder_,
                         " was measured with \"stream\", this run has \"graph\"", rest));
  EXPECT_EQ(check(R"({"max_batch":8})", 64),
            absl::StrCat("--launch: p16-x1 in ", folder_,
                         " was measured with \"stream\", this run has the default", rest));
  EXPECT_EQ(check(R"({"launch":"stream","max_batch":8,"memory":"slots"})", 64),
            absl::StrCat("--memory: p16-x1 in ", folder_,
                         " was measured with the default, this run has \"slots\"", rest));
  EXPECT_EQ(check(R"({"max_batch":4})", 64, "p64-x1"), "");  // which is not there
  EXPECT_EQ(check(R"({"launch":"stream","max_batch":8,"kv_cache_bytes":4096,"kv_blocks":9})", 64),
            absl::StrCat("--kv_cache_bytes: p16-x1 in ", folder_,
                         " was measured with 100 blocks, this run has 9 blocks", rest));
}

TEST_F(RecordFilesTest, RefusesAPassWithOtherSettings) {
  ArrivalRecord request;
  request.rate = 45.254834;  // the files have 45.2548
  request.requests = 1;
  {
    RecordFiles files = *RecordFiles::Open(folder_, context_);
    ASSERT_TRUE(
        files.AddPass({request}, {{"requests", 1}, {"workload", "a draw"}}, nlohmann::ordered_json::object())
            .ok());
  }
  const RecordFiles files = *RecordFiles::Open(folder_, context_);
  EXPECT_TRUE(files.CheckPass(45.254834, 0, 0, {{"requests", 1}, {"workload", "a draw"}}).ok());
  EXPECT_TRUE(files.CheckPass(1, 0, 0, {{"requests", 5}}).ok());  // which is not there
  EXPECT_EQ(files.PassFigures(45.254834, 0, 0)["rate"], 45.254834);
  EXPECT_EQ(files.CheckPass(45.254834, 0, 0, {{"requests", 400}}).message(),
            absl::StrCat("--requests: the pass at 45.2548/s in ", folder_,
                         " was measured with 1, this run has 400; take another --out"));
  EXPECT_EQ(files.CheckPass(45.254834, 0, 0, {{"requests", 1}, {"workload", "a trace"}}).message(),
            absl::StrCat("--workload: the pass at 45.2548/s in ", folder_,
                         " was measured with \"a draw\", this run has \"a trace\"; take another --out"));
}

TEST_F(RecordFilesTest, AnAnswerThatBrokeOffWasNotServed) {
  ArrivalRecord whole, broken;
  whole.completion_tokens = broken.completion_tokens = 3;
  whole.end_s = broken.end_s = 2;
  whole.end = "length";
  broken.end = "UNAVAILABLE";
  std::optional<RecordFiles> files(*RecordFiles::Open(folder_, context_));
  ASSERT_TRUE(
      files->AddPass({whole, broken}, nlohmann::ordered_json::object(), nlohmann::ordered_json::object())
          .ok());
  EXPECT_DOUBLE_EQ(files->ServedRate(0, 0, 0), 0.5);
  files.reset();
  EXPECT_DOUBLE_EQ(RecordFiles::Open(folder_, context_)->ServedRate(0, 0, 0), 0.5);
}

TEST_F(RecordFilesTest, WhoLeavesIsNotToBeServed) {
  std::vector<ArrivalRecord> requests(4);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].arrival_s = static_cast<double>(i);
    requests[i].end_s = 3;
    requests[i].end = i == 1 ? "cancelled" : "length";
  }
  std::optional<RecordFiles> files(*RecordFiles::Open(folder_, context_));
  ASSERT_TRUE(files->AddPass(requests, {}, nlohmann::ordered_json::object()).ok());
  EXPECT_DOUBLE_EQ(files->ArrivedRate(0, 0, 0), 0.75);  // three gaps of a second, three of four stayed
  files.reset();
  EXPECT_DOUBLE_EQ(RecordFiles::Open(folder_, context_)->ArrivedRate(0, 0, 0), 0.75);
}

TEST_F(RecordFilesTest, WritesTheIdsOfEqualOutputsOnce) {
  for (int index = 0; index < 2; ++index) {
    RecordFiles files = *RecordFiles::Open(folder_, context_);
    ASSERT_TRUE(files.AddRun({Run("p16-x2", index, {1, 2}), Run("p16-x2", index, {1, 2})}, {}).ok());
  }
  const std::string lines = RunLines();
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(lines, "token_ids")).size(), 2);  // one occurrence
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(lines, '\n')).size(), 5);         // four lines
}

TEST_F(RecordFilesTest, RefusesRecordsOfAnotherCardOrModel) {
  ASSERT_TRUE(RecordFiles::Open(folder_, context_)->AddRun({Run("p16-x1", 0, {1})}, {}).ok());
  context_.device_name = "another card";
  EXPECT_EQ(RecordFiles::Open(folder_, context_).status().message(),
            absl::StrCat("--device: ", folder_,
                         "/runs.csv.gz was measured with \"card\", this run has "
                         "\"another card\"; take another --out"));
}

// A run that was killed between its two files leaves a line alone; the pass is made again.
TEST_F(RecordFilesTest, TheFiguresOfAPassAreThoseOfItsRequests) {
  ArrivalRecord request;
  request.rate = 2;
  for (const int served : {7, 1}) {
    ASSERT_TRUE(RecordFiles::Open(folder_, context_)->AddPass({request}, {}, {{"served", served}}).ok());
    if (served == 7) std::filesystem::remove(folder_ + "/arrivals.csv.gz");
  }
  EXPECT_EQ(RecordFiles::Open(folder_, context_)->PassFigures(2, 0, 0)["served"], 1);
}

TEST_F(RecordFilesTest, WhatAServerSaysOfItsErrorsNeedNotBeUtf8) {
  ArrivalRecord request;
  request.rate = 2;
  RecordFiles files = *RecordFiles::Open(folder_, context_);
  ASSERT_TRUE(files.AddPass({request}, {}, {{"first_error", "a \xff"}}).ok());
  EXPECT_EQ(files.PassFigures(2, 0, 0)["first_error"], "a \uFFFD");
}

TEST_F(RecordFilesTest, RefusesOtherColumnsAndBrokenLines) {
  ASSERT_TRUE(RecordFiles::Open(folder_, context_)->AddRun({Run("p16-x1", 0, {1})}, {}).ok());
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
  ASSERT_TRUE(RecordFiles::Open(folder_, context_)->AddRun({Run("p16-x1", 0, {1})}, {}).ok());
  const std::string path = absl::StrCat(folder_, "/runs.csv.gz");
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(20).write("broken", 6);
  EXPECT_EQ(RecordFiles::Open(folder_, context_).status().message(),
            absl::StrCat(path, ": breaks off or is damaged"));
}

TEST_F(RecordFilesTest, ARunThatWasHalfWrittenIsCutOff) {
  const std::string path = absl::StrCat(folder_, "/runs.csv.gz");
  for (const int kept : {1, 0}) {
    {
      RecordFiles files = *RecordFiles::Open(folder_, context_);
      if (kept == 1) {
        ASSERT_TRUE(files.AddRun({Run("p16-x1", 0, {1})}, {}).ok());
      }
      ASSERT_TRUE(files.AddRun({Run("p16-x1", kept, {1})}, {}).ok());
    }
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 9);
    const absl::StatusOr<RecordFiles> files = RecordFiles::Open(folder_, context_);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(files->mended(), absl::StrCat(path, ": its last record was half written and is cut off\n"));
    EXPECT_EQ(files->HasRun("p16-x1", 0), kept == 1);
    EXPECT_FALSE(files->HasRun("p16-x1", 1));
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(RecordFilesTest, RefusesRecordsOfWhichHalfIsMissing) {
  ArrivalRecord request;
  request.rate = 2;
  {
    RecordFiles files = *RecordFiles::Open(folder_, context_);
    ASSERT_TRUE(files.AddRun({Run("p16-x1", 0, {1})}, {}).ok());
    ASSERT_TRUE(files.AddPass({request}, {{"requests", 1}}, nlohmann::ordered_json::object()).ok());
  }
  const std::string rest = "; restore it or take another --out";
  std::filesystem::remove(folder_ + "/passes.jsonl.gz");
  EXPECT_EQ(
      RecordFiles::Open(folder_, context_).status().message(),
      absl::StrCat(folder_, "/passes.jsonl.gz: lacks the pass at 2/s, which arrivals.csv.gz has", rest));
  std::filesystem::remove(folder_ + "/runs.jsonl.gz");
  EXPECT_EQ(RecordFiles::Open(folder_, context_).status().message(),
            absl::StrCat(folder_, "/runs.jsonl.gz: lacks run 0 of p16-x1, which runs.csv.gz has", rest));
}

TEST_F(RecordFilesTest, NamesTheLineThatIsNone) {
  ASSERT_TRUE(RecordFiles::Open(folder_, context_)->AddRun({Run("p16-x1", 0, {1})}, {}).ok());
  ASSERT_TRUE(
      AppendGzip(folder_ + "/runs.jsonl.gz", R"({"engine":"cached","workload":"p","run_index":"0"})").ok());
  EXPECT_EQ(RecordFiles::Open(folder_, context_).status().message(),
            absl::StrCat(folder_, "/runs.jsonl.gz, line 2: not a run"));
  std::filesystem::remove(folder_ + "/runs.csv.gz");
  ASSERT_TRUE(AppendGzip(folder_ + "/passes.jsonl.gz",
                         R"({"engine":"cached","rate":"2","last_rate":0,"in_flight":0,"requests":1})")
                  .ok());
  EXPECT_EQ(RecordFiles::Open(folder_, context_).status().message(),
            absl::StrCat(folder_, "/passes.jsonl.gz, line 1: not a pass"));
}

TEST_F(RecordFilesTest, WhatCannotBeWrittenLeavesNothingAndSaysWhy) {
  RecordFiles files = *RecordFiles::Open(folder_, context_);
  std::filesystem::create_symlink("/dev/full", folder_ + "/runs.csv.gz");
  EXPECT_EQ(files.AddRun({Run("p16-x1", 0, {1})}, {}).message(),
            absl::StrCat(folder_, "/runs.csv.gz: cannot be written: No space left on device"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/runs.jsonl.gz"));
}

TEST_F(RecordFilesTest, AFolderBelongsToOneRunAtATime) {
  std::optional<RecordFiles> files(*RecordFiles::Open(folder_, context_));
  EXPECT_EQ(RecordFiles::Open(folder_, context_).status(),
            absl::FailedPreconditionError(absl::StrCat("--out: ", folder_, ": another run writes there")));
  RecordFiles moved = *std::move(files);
  files.reset();
  EXPECT_FALSE(RecordFiles::Open(folder_, context_).ok());
  { const RecordFiles last = std::move(moved); }
  EXPECT_TRUE(RecordFiles::Open(folder_, context_).ok());
}

}  // namespace
}  // namespace ridge::bench
