// Lines of comma-separated values as RFC 4180 has them, but with a line feed alone.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ridge::bench {

// A field as it stands in a line: in quotes where it has to be.
std::string CsvField(absl::string_view value);

// Quoted, joined, with a line feed at the end.
std::string CsvLine(const std::vector<std::string>& fields);

// The fields of the first record in `text`, which is shortened by it. A record that breaks off has what there
// is.
std::vector<std::string> TakeCsvRecord(absl::string_view* text);

}  // namespace ridge::bench
