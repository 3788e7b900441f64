// The regular expressions of tokenizer files, which are written for Oniguruma, in PCRE2's dialect.
//
// White space is Unicode's White_Space, and the properties of unicode_classes.h are those of Unicode 16,
// whatever version the installed PCRE2 has. The result is meant for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridge::worker {

// UNIMPLEMENTED for what the two dialects read differently and no translation is known of.
absl::StatusOr<std::string> SplitRegexForPcre2(absl::string_view regex);

}  // namespace ridge::worker
