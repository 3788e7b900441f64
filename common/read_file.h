// Reading files that a flag or another file names: anything else than a file with an end (a directory, a
// device, a pipe) is refused before it is read, and a file by its size. Errors begin with the path.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ridge {

// A descriptor for reading, which the caller closes. INVALID_ARGUMENT where it is not a regular file; else
// the system's reason (NOT_FOUND, PERMISSION_DENIED).
absl::StatusOr<int> OpenRegularFile(const std::string& path);

// The whole file; INVALID_ARGUMENT where it has more than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes);

}  // namespace ridge
