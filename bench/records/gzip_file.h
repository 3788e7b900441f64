// Text files that are compressed: small in a repository, and read by zcat and Python's gzip. Errors name the
// file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridge::bench {

// The text of a gzip file, or of one that is not compressed. NOT_FOUND where there is none.
absl::StatusOr<std::string> ReadGzip(const std::string& path);

// Adds a member to a gzip file, which is made where there is none; readers see one text.
absl::Status AppendGzip(const std::string& path, absl::string_view text);

}  // namespace ridge::bench
