// JSON as Python's json.dumps(ensure_ascii=False) writes it, which is what the models' own templates put into
// prompts: members in the order given, ", " and ": " between them, floats in their shortest form.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridge::worker {

// With `indent` > 0 each member has its own line. INVALID_ARGUMENT, beginning with `field`, for what is not
// one JSON object, gives a key twice or holds a number that is out of range.
absl::StatusOr<std::string> PythonJsonObject(absl::string_view json, absl::string_view field, int indent = 0);

}  // namespace ridge::worker
