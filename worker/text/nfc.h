// Unicode's normalization form C, of Unicode 9: that of Hugging Face's tokenizers, which models are trained
// with. Characters that came later stand for themselves; a newer version would reorder some.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridge::worker {

// Whether every character is of the many that normalization leaves alone wherever they stand; false says
// nothing. Requires valid UTF-8.
bool IsPlainlyNfc(absl::string_view text);

// Requires valid UTF-8.
absl::StatusOr<std::string> NormalizeNfc(absl::string_view text);

}  // namespace ridge::worker
