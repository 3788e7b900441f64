// The series' workload (tests/golden/seed-series): requests of mixed lengths that arrive over time.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/check.h"

namespace ridge {

struct DrawnRequest {
  int32_t prompt_tokens;
  int32_t new_tokens;
  double arrival_s;  // at one request a second
};

inline std::vector<DrawnRequest> ReadMixedDraw(const std::string& path) {
  std::ifstream file(path);
  std::vector<DrawnRequest> requests;
  std::string line;
  std::getline(file, line);  // the header
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    DrawnRequest request{};
    RIDGE_CHECK(fields.size() == 4 && absl::SimpleAtoi(fields[1], &request.prompt_tokens) &&
                absl::SimpleAtoi(fields[2], &request.new_tokens) &&
                absl::SimpleAtod(fields[3], &request.arrival_s));
    requests.push_back(request);
  }
  return requests;
}

}  // namespace ridge
