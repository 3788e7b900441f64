// A tokenizer from the files of a Hugging Face directory: tokenizer.json, tokenizer_config.json and the chat
// template's own file.
//
// Byte-level BPE only. Everything in the file that would change a token is honoured or refused: errors are
// one line that names file and field, UNIMPLEMENTED for another kind of tokenizer or a part that is not
// built, INVALID_ARGUMENT for one that is broken. Memory stays within a few times what the tokens need,
// whatever the file says.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/text/tokenizer_spec.h"

namespace ridge::worker {

// NOT_FOUND where the directory has no tokenizer.
absl::StatusOr<TokenizerSpec> TokenizerSpecFromHfDirectory(const std::string& directory);

// The text of a tokenizer.json; `path` is for messages.
absl::StatusOr<TokenizerSpec> TokenizerSpecFromJson(absl::string_view text, absl::string_view path);

// Adds what a tokenizer_config.json says: added tokens, BOS and EOS, whether they are put around a text, and
// the chat template.
absl::Status AddTokenizerConfig(absl::string_view text, absl::string_view path, TokenizerSpec* spec);

}  // namespace ridge::worker
