// UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF. Pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace ridge {

bool IsValidUtf8(absl::string_view text);

// Puts U+FFFD for each maximal ill-formed part, as Unicode recommends: a well-formed beginning of a character
// that is cut off counts as one part.
std::string ReplaceInvalidUtf8(absl::string_view text);

// How many bytes at the end begin a character and lack the rest of it; 0 where more bytes could not complete
// one.
size_t IncompleteUtf8Suffix(absl::string_view text);

}  // namespace ridge
