// A tokenizer from GGUF metadata.
#pragma once

#include "absl/status/statusor.h"
#include "worker/model/gguf.h"
#include "worker/text/tokenizer_spec.h"

namespace ridge::worker {

// NOT_FOUND where the file has no tokenizer; UNIMPLEMENTED for another kind than byte-level BPE or an unknown
// pre-tokenizer; INVALID_ARGUMENT for one that is broken. Errors name file and key.
absl::StatusOr<TokenizerSpec> TokenizerSpecFromGguf(const GgufFile& file);

}  // namespace ridge::worker
