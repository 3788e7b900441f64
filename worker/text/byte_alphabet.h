// The printable stand-ins that byte-level vocabularies are written in: each byte is one character, printable
// bytes stand for themselves.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridge::worker {

// The raw bytes of a piece; INVALID_ARGUMENT where a character stands for no byte.
absl::StatusOr<std::string> BytesFromPrintable(absl::string_view printable);

}  // namespace ridge::worker
