// The golden.json files of tests/golden.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace ridge::worker {

inline nlohmann::json ReadGolden(const std::string& name) {
  return nlohmann::json::parse(std::ifstream(std::string(RIDGE_TEST_DATA_DIR) + "/" + name));
}

}  // namespace ridge::worker
