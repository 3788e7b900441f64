#include "bench/roofline_command.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "bench/records/gzip_file.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

class MeasuredRunsTest : public ::testing::Test {
 protected:
  ~MeasuredRunsTest() override { std::filesystem::remove(path_); }

  absl::StatusOr<std::vector<Measured>> Read(const std::string& rows) const {
    std::filesystem::remove(path_);
    const std::string header =
        "model,device_name,engine,workload,is_warmup,run_index,batch_size,prompt_tokens,max_new_tokens,ttft_"
        "s,itl_p50_ms\n";
    EXPECT_TRUE(AppendGzip(path_, header + rows).ok());
    return MeasuredRuns(path_, "m", "NVIDIA A10");
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/",
                                         ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

// What all prompts of a batch took is there when the last of them has its token, not when half of them have.
TEST_F(MeasuredRunsTest, ABatchsPromptsTakeUntilItsLastFirstToken) {
  const std::vector<Measured> runs = *Read(
      "m,cuda: NVIDIA A10,batched,p16-x2,True,-1,2,16,32,9,9\nm,cuda: NVIDIA "
      "A10,batched,p16-x2,True,-1,2,16,32,9,9\n"
      "m,cuda: NVIDIA A10,batched,p16-x2,False,0,2,16,32,0.1,2\nm,cuda: NVIDIA "
      "A10,batched,p16-x2,False,0,2,16,32,0.4,2\n"
      "m,cuda: NVIDIA A10,batched,p16-x2,False,1,2,16,32,0.3,3\nm,cuda: NVIDIA "
      "A10,batched,p16-x2,False,1,2,16,32,0.1,3\n"
      "m,cuda: NVIDIA A10,batched,p16-x2,False,2,2,16,32,0.5,3\nm,cuda: NVIDIA "
      "A10,batched,p16-x2,False,2,2,16,32,0.2,3\n"
      "m,cuda: NVIDIA A10,batched,mixed-x2,False,0,2,16,32,7,7\n");
  ASSERT_EQ(runs.size(), 1);
  EXPECT_EQ(runs[0].what, "batched, p16-x2");
  EXPECT_EQ(runs[0].batch, 2);
  EXPECT_EQ(runs[0].prompt_tokens, 16);
  EXPECT_EQ(runs[0].new_tokens, 32);
  EXPECT_DOUBLE_EQ(runs[0].last_ttft_s, 0.4);  // of 0.4, 0.3, 0.5
  EXPECT_DOUBLE_EQ(runs[0].itl_s, 0.003);
}

TEST_F(MeasuredRunsTest, NamesTheFileThatIsDamaged) {
  EXPECT_EQ(Read("m,cuda: NVIDIA A10,batched,p16-x2,False").status().message(),
            absl::StrCat("--records: ", path_, ": a line breaks off"));
  EXPECT_EQ(Read("m,cuda: NVIDIA A10,batched,p16-x2,False,0,2,16,x,0.1,2\n").status().message(),
            absl::StrCat("--records: ", path_, ": a figure is not a number"));
}

TEST_F(MeasuredRunsTest, RefusesAnotherModelAndAnotherCard) {
  const std::string rest = ",batched,p16-x2,False,0,2,16,32,0.1,2\n";
  EXPECT_EQ(Read("other,cuda: NVIDIA A10" + rest).status().message(),
            absl::StrCat("--records: ", path_, ": of other, not of m"));
  EXPECT_EQ(Read("m,cuda: NVIDIA A10G" + rest).status().message(),
            absl::StrCat("--records: ", path_, ": on cuda: NVIDIA A10G, not on NVIDIA A10"));
}

}  // namespace
}  // namespace ridge::bench
