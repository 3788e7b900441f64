// The properties of characters that regular expressions of tokenizer files may name.
#pragma once

#include "absl/strings/string_view.h"

namespace ridge::worker {

// The characters that Oniguruma, as Hugging Face's package has it, gives to \p{name}: the inside of a class
// for PCRE2 10.42. Empty where that is not known.
absl::string_view UnicodeClass(absl::string_view name);

}  // namespace ridge::worker
