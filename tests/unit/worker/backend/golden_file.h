// The golden.json files of tests/golden.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace ridge::worker {

// Of tests/golden; the variable says where it is for a program that was built elsewhere.
inline std::string DataDirectory() {
  const char* directory = std::getenv("RIDGE_TEST_DATA_DIR");
  return directory != nullptr ? directory : RIDGE_TEST_DATA_DIR;
}

inline nlohmann::json ReadGolden(const std::string& name) {
  return nlohmann::json::parse(std::ifstream(DataDirectory() + "/" + name));
}

}  // namespace ridge::worker
