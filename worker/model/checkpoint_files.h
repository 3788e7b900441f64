// The weight files of a Hugging Face directory: one model.safetensors, or shards that an index names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/safetensors.h"
#include "worker/model/stored_tensor.h"

namespace ridge::worker {

struct CheckpointFiles {
  std::string path;  // of model.safetensors or of the index: where a tensor is missed
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  TensorMap tensors;  // of all files
};

// Index and shards have to agree: each tensor lies in the shard that the index gives for it, and no shard
// holds another one. A shard is named without a folder. NOT_FOUND, INVALID_ARGUMENT or DATA_LOSS naming file
// and tensor.
absl::StatusOr<CheckpointFiles> OpenCheckpointFiles(const std::string& directory);

}  // namespace ridge::worker
