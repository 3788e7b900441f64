// Weights from a Hugging Face directory: config.json, model.safetensors or its shards, and
// generation_config.json where there is one.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/model/checkpoint_files.h"
#include "worker/model/file_source.h"

namespace ridge::worker {

class HfSource : public FileSource {
 public:
  // Checks that the weights are exactly those of the configuration.
  static absl::StatusOr<std::unique_ptr<HfSource>> Open(const std::string& directory);

  // For what else it holds: the tokenizer.
  const std::string& directory() const { return directory_; }

 private:
  HfSource(std::string directory, CheckpointFiles checkpoint);

  std::string Identity() const override;

  const std::string directory_;
  const CheckpointFiles checkpoint_;
};

}  // namespace ridge::worker
