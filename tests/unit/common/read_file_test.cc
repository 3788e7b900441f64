#include "common/read_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace ridge {
namespace {

using ::testing::StartsWith;

std::string ErrorOf(const std::string& path) {
  return std::string(ReadFile(path, 100).status().message());
}

class ReadFileTest : public ::testing::Test {
 protected:
  void TearDown() override { std::remove(path_.c_str()); }

  const std::string path_ = testing::TempDir() + "ridge_read_file_test";
};

TEST_F(ReadFileTest, GivesAllBytesUpToTheLimit) {
  const std::string text = std::string("a\0b\n", 4) + std::string(3 << 20, 'c');
  std::ofstream(path_, std::ios::binary) << text;
  EXPECT_EQ(*ReadFile(path_, static_cast<int64_t>(text.size())), text);
  EXPECT_EQ(ReadFile(path_, static_cast<int64_t>(text.size()) - 1).status(),
            absl::InvalidArgumentError(path_ + ": larger than 3 MiB"));
  EXPECT_EQ(ReadFile(path_, 1 << 20).status().message(), path_ + ": larger than 1 MiB");
  std::ofstream(path_, std::ios::trunc).close();
  EXPECT_EQ(*ReadFile(path_, 0), "");
}

TEST_F(ReadFileTest, WhatHasNoEndOrIsNoFileIsRefusedBeforeItIsRead) {
  EXPECT_EQ(ErrorOf(testing::TempDir()), testing::TempDir() + ": not a regular file");
  EXPECT_EQ(ErrorOf("/dev/zero"), "/dev/zero: not a regular file");
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(ErrorOf(path_), path_ + ": not a regular file");
}

TEST_F(ReadFileTest, SaysWhyAFileCannotBeRead) {
  EXPECT_EQ(ReadFile("/nowhere/f", 100).status(),
            absl::NotFoundError("/nowhere/f: cannot open: No such file or directory"));
  EXPECT_THAT(ErrorOf("/proc/self/mem"), StartsWith("/proc/self/mem: cannot be read: "));
}

}  // namespace
}  // namespace ridge
