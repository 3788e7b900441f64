#include "bench/records/csv.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::bench {
namespace {

using ::testing::ElementsAre;

TEST(CsvLine, QuotesWhatNeedsIt) {
  EXPECT_EQ(CsvLine({"a", "", "b,c", "say \"no\"", "two\nlines"}),
            "a,,\"b,c\",\"say \"\"no\"\"\",\"two\nlines\"\n");
}

TEST(TakeCsvRecord, ReadsBackWhatWasWritten) {
  const std::vector<std::string> first = {"a", "", "b,c", "say \"no\"", "two\nlines"},
                                 second = {"{\"k\": \"v\"}"};
  const std::string text = CsvLine(first) + CsvLine(second);
  absl::string_view rest = text;
  EXPECT_EQ(TakeCsvRecord(&rest), first);
  EXPECT_EQ(TakeCsvRecord(&rest), second);
  EXPECT_TRUE(rest.empty());
}

TEST(TakeCsvRecord, TakesCarriageReturnsAndBrokenEnds) {
  absl::string_view text = "a,b\r\nc,\"d";
  EXPECT_THAT(TakeCsvRecord(&text), ElementsAre("a", "b"));
  EXPECT_THAT(TakeCsvRecord(&text), ElementsAre("c", "d"));
}

}  // namespace
}  // namespace ridge::bench
