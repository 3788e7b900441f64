#include "common/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

ABSL_FLAG(int, test_batch_rows, 8, "rows");
ABSL_FLAG(bool, test_graphs, true, "graphs");
ABSL_FLAG(std::string, test_name, "", "name");
ABSL_FLAG(absl::Duration, test_limit, absl::Seconds(1), "limit");

namespace ridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NormaliseFlagNamesTest, RewritesNamesAndLeavesTheRest) {
  EXPECT_THAT(
      NormaliseFlagNames(
          {"ridge-worker", "--kv-cache-bytes=1-2", "--max-batch", "a-b", "x--y", "-v-w", "-", "-1"}),
      ElementsAre("ridge-worker", "--kv_cache_bytes=1-2", "--max_batch", "a-b", "x--y", "-v_w", "-", "-1"));
}

TEST(NormaliseFlagNamesTest, NegatesTheWayAbseilDoes) {
  EXPECT_THAT(NormaliseFlagNames({"p", "--no-prefix-cache", "--noprefix-cache"}),
              ElementsAre("p", "--noprefix_cache", "--noprefix_cache"));
}

TEST(NormaliseFlagNamesTest, ValuesStayAsTheyAre) {
  EXPECT_THAT(NormaliseFlagNames({"p", "--test-name", "--a-b-c", "--test-batch-rows", "-1", "-test-name",
                                  "--", "--test-graphs", "--test-batch-rows=2"}),
              ElementsAre("p", "--test_name", "--a-b-c", "--test_batch_rows", "-1", "-test_name", "--",
                          "--test_graphs", "--test_batch_rows=2"));
}

TEST(NormaliseFlagNamesTest, StopsAtALoneDoubleDash) {
  EXPECT_THAT(NormaliseFlagNames({"p", "--a-b", "--", "--c-d=e-f"}),
              ElementsAre("p", "--a_b", "--", "--c-d=e-f"));
}

TEST(GivenFlagsTest, NamesWhatIsGivenAsItIsRegistered) {
  EXPECT_THAT(GivenFlags({"p", "in-file", "--test-name", "--test-limit", "--no-test-graphs",
                          "-test_batch_rows=3", "--unknown", "--", "--test-limit=1s"}),
              ElementsAre("test_name", "test_graphs", "test_batch_rows", "unknown"));
}

TEST(GivenFlagsTest, NamesThoseOfAFlagsFileToo) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/given_flags"), inner = file + "_inner";
  std::ofstream(file) << "# a comment\n\n  --test_name=a b\n--notest_graphs\n--flagfile=" << inner << "\n";
  std::ofstream(inner) << "-test_batch_rows=3\n";
  EXPECT_THAT(
      GivenFlags({"p", "--flagfile", file, "--test-limit=1s"}),
      ElementsAre("flagfile", "test_name", "test_graphs", "flagfile", "test_batch_rows", "test_limit"));
  EXPECT_THAT(GivenFlags({"p", absl::StrCat("--flagfile=", inner, ",/nowhere"), "--test-limit=1s"}),
              ElementsAre("flagfile", "test_batch_rows"));
  EXPECT_THAT(GivenFlags({"p", "--flagfile"}), ElementsAre("flagfile"));
  std::remove(file.c_str());
  std::remove(inner.c_str());
}

TEST(FlagHelpTest, ListsTheFlagsInTheOrderAsked) {
  const std::string help = FlagHelp("usage: p", {"test_name", "test_batch_rows"});
  EXPECT_THAT(help, testing::StartsWith("usage: p\n\nFlags (dashes and underscores are the same):\n"
                                        "  --test-name\n      name\n"
                                        "  --test-batch-rows\n      rows (default: 8)\n"));
}

// ParseFlags is for one call a process, so each case runs in a child. It prints what was parsed and exits
// with 0.
void ParseAndPrint(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  const std::vector<std::string> rest =
      ParseFlags("Tests flags.", static_cast<int>(argv.size()), argv.data());
  const std::string line = absl::StrCat(absl::GetFlag(FLAGS_test_batch_rows), " ",
                                        absl::GetFlag(FLAGS_test_graphs) ? "graphs" : "stream", " ",
                                        absl::GetFlag(FLAGS_test_name), " [", absl::StrJoin(rest, ","), "]");
  std::fprintf(stderr, "%s\n", line.c_str());
  std::exit(0);
}

TEST(ParseFlagsDeathTest, TakesBothSpellingsAndReturnsPositionalArguments) {
  EXPECT_EXIT(
      ParseAndPrint({"p", "--test-batch-rows=5", "in-file", "--no-test-graphs", "--test-name", "a-b"}),
      testing::ExitedWithCode(0), "5 stream a-b \\[in-file\\]");
  EXPECT_EXIT(ParseAndPrint({"p", "--test_batch_rows", "6", "--", "--test-name=x"}),
              testing::ExitedWithCode(0), "6 graphs  \\[--test-name=x\\]");
}

TEST(ParseFlagsDeathTest, AValueMayLookLikeAFlag) {
  EXPECT_EXIT(ParseAndPrint({"p", "--test-name", "--foo-bar-baz", "--test-batch-rows", "3"}),
              testing::ExitedWithCode(0), "3 graphs --foo-bar-baz \\[\\]");
  EXPECT_EXIT(ParseAndPrint({"p", "--test-name", "--", "-test-batch-rows", "4"}), testing::ExitedWithCode(0),
              "4 graphs -- \\[\\]");
  EXPECT_EXIT(ParseAndPrint({"p", "--test-name", "--help"}), testing::ExitedWithCode(0),
              "8 graphs --help \\[\\]");
}

// What it prints goes to stdout, which a death test does not see; it goes to stderr here.
void PrintHelpToStderr(const char* flag) {
  dup2(STDERR_FILENO, STDOUT_FILENO);
  ParseAndPrint({"p", flag});
}

TEST(ParseFlagsDeathTest, HelpIsNoErrorAndShowsNoPathOfTheBuild) {
  for (const char* flag : {"--help", "-h", "--helpfull", "--helpon=flags"}) {
    EXPECT_EXIT(PrintHelpToStderr(flag), testing::ExitedWithCode(0), "^Tests flags.\n\nFlags [^/]*$");
  }
}

TEST(ParseFlagsDeathTest, UnknownFlagEndsTheProcessAndIsNamed) {
  EXPECT_EXIT(ParseAndPrint({"p", "--kv-cash=1"}), testing::ExitedWithCode(1), "kv_cash");
}

TEST(ParseFlagsDeathTest, BadValueEndsTheProcessAndNamesFlagAndValue) {
  EXPECT_EXIT(ParseAndPrint({"p", "--test-batch-rows=many"}), testing::ExitedWithCode(1),
              "many.*test_batch_rows");
}

TEST(ParseFlagsDeathTest, ADurationNeedsItsUnit) {
  const char* expected = "--test_limit: \"5\" is not a duration with its unit, as 5s, 200ms or 1m30s";
  EXPECT_EXIT(ParseAndPrint({"p", "--test-limit=5"}), testing::ExitedWithCode(1), expected);
  EXPECT_EXIT(ParseAndPrint({"p", "--test-limit", "5", "in-file"}), testing::ExitedWithCode(1), expected);
  EXPECT_EXIT(ParseAndPrint({"p", "--test-limit", "1m30s"}), testing::ExitedWithCode(0), "8 graphs  \\[\\]");
}

TEST(ParseFlagsDeathTest, ReadsAFlagFile) {
  const std::string path = testing::TempDir() + "ridge_flags_test.flags";
  std::ofstream(path) << "# a comment\n--test_batch_rows=7\n--notest_graphs\n";
  EXPECT_EXIT(ParseAndPrint({"p", absl::StrCat("--flagfile=", path)}), testing::ExitedWithCode(0),
              "7 stream  \\[\\]");
  std::remove(path.c_str());
}

TEST(ParseFlagsDeathTest, AFlagFileThatCannotBeReadIsNamed) {
  EXPECT_EXIT(ParseAndPrint({"p", "--flagfile=/dev"}), testing::ExitedWithCode(1),
              "^ERROR: --flagfile: /dev: not a regular file\n$");
  EXPECT_EXIT(ParseAndPrint({"p", "--flagfile", "/dev/zero"}), testing::ExitedWithCode(1),
              "^ERROR: --flagfile: /dev/zero: not a regular file\n$");
  EXPECT_EXIT(ParseAndPrint({"p", "--flagfile=/nowhere"}), testing::ExitedWithCode(1),
              "^ERROR: --flagfile: /nowhere: cannot open: No such file or directory\n$");
  const std::string path = testing::TempDir() + "ridge_flags_circle";
  std::ofstream(path) << "--flagfile=" << path << "\n--flagfile=" << path << "\n";
  EXPECT_EXIT(ParseAndPrint({"p", "--flagfile", path}), testing::ExitedWithCode(1),
              "ridge_flags_circle: more than 8 files that name one another");
  std::remove(path.c_str());
}

TEST(ParseBytesTest, ReadsPlainNumbersAndBinaryUnits) {
  EXPECT_EQ(*ParseBytes("kv_cache_bytes", "0"), 0);
  EXPECT_EQ(*ParseBytes("kv_cache_bytes", "1000000"), 1'000'000);
  EXPECT_EQ(*ParseBytes("kv_cache_bytes", "64KiB"), 65'536);
  EXPECT_EQ(*ParseBytes("kv_cache_bytes", "512MiB"), 536'870'912);
  EXPECT_EQ(*ParseBytes("kv_cache_bytes", " 2 GiB "), int64_t{2'147'483'648});
  EXPECT_EQ(*ParseBytes("kv_cache_bytes", "10TiB"), int64_t{10'995'116'277'760});
  EXPECT_EQ(*ParseBytes("kv_cache_bytes", "9223372036854775807"), INT64_MAX);
}

TEST(ParseBytesTest, RefusesAnythingElseAndNamesFlagAndText) {
  for (const char* text : {"", "GiB", "-1", "1.5GiB", "2GB", "12 apples", "9223372036854775808",
                           "8589934592GiB", "8388608TiB"}) {
    const absl::StatusOr<int64_t> bytes = ParseBytes("kv_cache_bytes", text);
    ASSERT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(bytes.status().message()),
                HasSubstr(absl::StrCat("--kv_cache_bytes: \"", text, "\"")))
        << text;
  }
}

}  // namespace
}  // namespace ridge
