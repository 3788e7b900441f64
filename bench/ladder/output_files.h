// The outputs in a runs.jsonl.gz, for comparing engines token for token.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace ridge::bench {

struct Output {
  int32_t prompt_tokens = 0;
  std::vector<int32_t> ids;
};

// By workload and sequence; every run of a workload must have given the same. Errors name file and line.
using Outputs = std::map<std::pair<std::string, int32_t>, Output>;
absl::StatusOr<Outputs> ReadOutputs(const std::string& path);

// Where two outputs part: the index of the first token that differs or that one of them lacks; -1: nowhere.
int32_t FirstDifference(const Output& a, const Output& b);

}  // namespace ridge::bench
