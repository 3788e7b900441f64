#include "bench/records/settings_check.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

RunContext Context() {
  RunContext context;
  context.model = "a model";
  context.device = "cpu";
  context.device_name = "cpu: 2 threads";
  context.engine_params = R"({"max_batch":8})";
  return context;
}

std::string Check(const RecordedOn& there, const RunContext& here) {
  return std::string(CheckSubject("DIR/runs.csv.gz", there, here).message());
}

TEST(CheckSubject, NamesTheFlagAndBothValues) {
  const RecordedOn there{"a model", "cpu", "cpu: 2 threads", R"({"max_batch":8})"};
  EXPECT_EQ(Check(there, Context()), "");
  RunContext here = Context();
  here.model = "another";
  EXPECT_EQ(Check(there, here),
            "--model: DIR/runs.csv.gz was measured with \"a model\", this run has \"another\"; take another "
            "--out");
  here = Context();
  here.device = here.device_name = "cuda";
  EXPECT_EQ(Check(there, here),
            "--device: DIR/runs.csv.gz was measured with \"cpu: 2 threads\", this run has \"cuda\"; take "
            "another --out");
  here = Context();
  here.device_name = "cpu: 1 threads";
  here.engine_params = R"({"threads":1})";
  EXPECT_EQ(Check(there, here),
            "--threads: DIR/runs.csv.gz was measured with the default, this run has 1; take another --out");
  here.engine_params = "{}";  // another machine
  EXPECT_EQ(
      Check(there, here),
      "--device: DIR/runs.csv.gz was measured with \"cpu: 2 threads\", this run has \"cpu: 1 threads\"; "
      "take another --out");
}

TEST(CheckSubject, TheDeviceMayGoByAnotherName) {
  RunContext here = Context();
  here.device = "auto";
  EXPECT_EQ(Check({"a model", "cpu", "cpu: 2 threads", "{}"}, here), "");
}

TEST(CheckSubject, OfAServiceItIsTheTargetThatDiffers) {
  RunContext here = Context();
  here.device = "service";
  for (const char* model : {"a model", "another"}) {
    EXPECT_EQ(Check({model, "service", "cpu: 1 threads", "{}"}, here).substr(0, 10), "--target: ");
  }
}

TEST(CheckWorkloadSettings, LeavesOutWhatOlderVersionsDidNotRecord) {
  EXPECT_TRUE(CheckWorkloadSettings("it", R"({"requests":4})", {{"requests", 4}, {"burstiness", 1}}).ok());
  EXPECT_EQ(CheckWorkloadSettings("it", R"({"requests":4})", {{"requests", 5}}).message(),
            "--requests: it was measured with 4, this run has 5; take another --out");
}

}  // namespace
}  // namespace ridge::bench
