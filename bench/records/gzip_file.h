// Text files that are compressed: small in a repository, and read by zcat and Python's gzip. Errors name the
// file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridge::bench {

// The text of a gzip file, or of one that is not compressed. NOT_FOUND where there is none.
absl::StatusOr<std::string> ReadGzip(const std::string& path);

// Adds a member to a gzip file, which is made where there is none; readers see one text. Where it cannot be
// written whole, nothing of it stays, and the error has the system's reason.
absl::Status AppendGzip(const std::string& path, absl::string_view text);

// Takes off a last member that breaks off, as a process leaves it that was killed while it wrote; true where
// there was one. A file that holds nothing else goes. Other damage stays, for ReadGzip to report.
absl::StatusOr<bool> CutHalfMember(const std::string& path);

}  // namespace ridge::bench
