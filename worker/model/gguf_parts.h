// A GGUF model in one file, or in several as llama-gguf-split writes them: NAME-00001-of-00003.gguf and so
// on, the metadata in the first, each with tensors of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/gguf.h"
#include "worker/model/stored_tensor.h"

namespace ridge::worker {

struct GgufParts {
  std::vector<std::unique_ptr<GgufFile>> files;  // at least one; in order
  TensorMap tensors;                             // of all; views point into the files
};

// `path` is the only file, or the first part. Errors name file and key, tensor, or the part that is missing.
absl::StatusOr<GgufParts> OpenGgufParts(const std::string& path);

}  // namespace ridge::worker
