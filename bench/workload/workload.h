// A workload: what is asked of an engine, and when. Drawn or read once, frozen to a file, and replayed by
// every engine and every peer. Plain data.
//
// The file is JSON lines. The first is {"schema":"ridge-workload/1","name":...,"origin":...} and, so that a
// file that was cut is noticed, "requests", their number; each further one is a request:
// {"index","label","prompt_tokens","max_tokens","arrival_s"} and, for prompts that share beginnings,
// "prefix_blocks" (names of their blocks of kPrefixBlockTokens tokens, equal names for equal beginnings).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridge::bench {

inline constexpr int32_t kPrefixBlockTokens = 512;

struct WorkItem {
  std::string label;  // of its prompt: "p256"
  int32_t prompt_tokens = 0;
  int32_t max_tokens = 0;
  double arrival_s = 0;  // from the start of the run, ascending; 0 where all is handed over at once
  std::vector<int64_t> prefix_blocks;
};

struct Workload {
  std::string name;
  std::string origin;  // how it came about: a draw with its seed, a trace's file
  std::vector<WorkItem> items;
};

// Tokens of prompt and answer of the request with the most; 0 where there is none.
int32_t LongestOf(const Workload& workload);

std::string ToJsonLines(const Workload& workload);

// INVALID_ARGUMENT naming `origin`, the line and the field.
absl::StatusOr<Workload> FromJsonLines(absl::string_view text, const std::string& origin);

// Where a file cannot be written whole, nothing of it stays, and the error has the system's reason.
absl::Status WriteText(const std::string& path, absl::string_view text);
absl::Status WriteWorkload(const Workload& workload, const std::string& path);
absl::StatusOr<Workload> ReadWorkload(const std::string& path);

}  // namespace ridge::bench
