// What the experiments' tests run on: a target of known timing, and records in a folder of the test's own.
#pragma once

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/measure/subject.h"
#include "gtest/gtest.h"

namespace ridge::bench {

// Gives every request its first token `ttft_s` after its arrival and one every `gap_s` from then on.
class EvenTarget final : public Target {
 public:
  EvenTarget(double ttft_s, double gap_s) : ttft_s_(ttft_s), gap_s_(gap_s) {}

  absl::StatusOr<std::vector<TargetResult>> Run(absl::Span<const TargetRequest> requests,
                                                const RunLimits&) override {
    sizes.push_back(requests.size());
    last_arrival_s = requests.back().arrival_s;
    leaving = std::count_if(requests.begin(), requests.end(),
                            [](const auto& r) { return r.cancel_after_tokens > 0; });
    std::vector<TargetResult> results;
    for (const TargetRequest& request : requests) {
      TargetResult result;
      result.sent_s = request.arrival_s + late_s;
      result.start_s = request.arrival_s + ttft_s_ / 2;
      for (int32_t i = 0; i < request.max_tokens; ++i) {
        result.token_s.push_back(request.arrival_s + ttft_s_ + gap_s_ * i);
        result.ids.push_back(request.prompt_ids->front() + i);
      }
      result.end_s = result.token_s.back();
      result.end = end;
      result.error = error;
      results.push_back(std::move(result));
    }
    if (is_late_once) late_s = 0;
    return results;
  }

  std::vector<size_t> sizes;  // of the runs
  int64_t leaving = 0;        // clients of the last one
  double last_arrival_s = 0;  // of the last one's requests
  double late_s = 0;
  bool is_late_once = false;
  std::string end = "length", error;

 private:
  const double ttft_s_;
  const double gap_s_;
};

class SubjectTest : public ::testing::Test {
 protected:
  SubjectTest() : prompts_(nullptr, "", 100) {
    folder_ = absl::StrCat(::testing::TempDir(), "/subject_",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    context_.engine = "even";
    Open();
  }
  ~SubjectTest() override { std::filesystem::remove_all(folder_); }

  void Open() {
    records_.reset();  // lets go of the folder
    records_.emplace(*RecordFiles::Open(folder_, context_));
  }
  Subject SubjectOf(Target* target) { return {target, &prompts_, &*records_, 32, {}, "", {}, &progress_}; }

  std::string folder_;
  RunContext context_;
  Prompts prompts_;
  std::optional<RecordFiles> records_;
  std::ostringstream progress_;
};

}  // namespace ridge::bench
