// What the libFuzzer targets share: their input as a file, without a disk, and what every result has to be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace ridge {

// The path of a file in memory that holds exactly these bytes until the next call. One thread.
std::string FuzzFile(const uint8_t* data, size_t size);

// Ends the process unless an error is one printable line of at most 2,000 bytes that begins with `path`.
void CheckError(const absl::Status& status, const std::string& path);

}  // namespace ridge
