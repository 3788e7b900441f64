#include "bench/ladder/output_files.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "bench/records/gzip_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;

class OutputFilesTest : public ::testing::Test {
 protected:
  OutputFilesTest()
      : path_(absl::StrCat(::testing::TempDir(), "/outputs_",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name(), ".jsonl.gz")) {
    std::filesystem::remove(path_);
  }
  ~OutputFilesTest() override { std::filesystem::remove(path_); }

  void Add(int sequence, const std::string& hash, const std::string& ids) {
    std::string line = absl::StrCat(R"({"workload":"p16-x2","sequence_index":)", sequence,
                                    R"(,"prompt_tokens":16,"output_sha8":")", hash, "\"");
    if (!ids.empty()) absl::StrAppend(&line, ",\"token_ids\":[", ids, "]");
    ASSERT_TRUE(AppendGzip(path_, absl::StrCat(line, "}\n")).ok());
  }

  const std::string path_;
};

TEST_F(OutputFilesTest, IdsStandWithTheFirstOfEqualOutputs) {
  Add(0, "aa", "1,2");
  Add(1, "aa", "");
  const absl::StatusOr<Outputs> outputs = ReadOutputs(path_);
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT(outputs->at({"p16-x2", 1}).ids, ElementsAre(1, 2));
  EXPECT_EQ(outputs->at({"p16-x2", 0}).prompt_tokens, 16);
}

TEST_F(OutputFilesTest, RunsThatDisagreeAreAnError) {
  Add(0, "aa", "1,2");
  Add(0, "bb", "1,3");
  EXPECT_THAT(std::string(ReadOutputs(path_).status().message()),
              EndsWith("line 2: p16-x2 sequence 0 gave other tokens than in an earlier run"));
}

TEST_F(OutputFilesTest, NamesTheLineThatIsWrong) {
  Add(0, "aa", "");
  EXPECT_THAT(std::string(ReadOutputs(path_).status().message()),
              EndsWith("line 1: no line before has the ids of aa"));
  EXPECT_EQ(ReadOutputs("/nowhere").status().message(), "/nowhere: cannot open: No such file or directory");
}

TEST(FirstDifference, IsTheFirstTokenThatDiffersOrIsMissing) {
  EXPECT_EQ(FirstDifference({16, {1, 2, 3}}, {16, {1, 2, 3}}), -1);
  EXPECT_EQ(FirstDifference({16, {1, 2, 3}}, {16, {1, 5, 3}}), 1);
  EXPECT_EQ(FirstDifference({16, {1, 2}}, {16, {1, 2, 3}}), 2);
}

}  // namespace
}  // namespace ridge::bench
