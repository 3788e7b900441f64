// Weights from a Hugging Face directory: config.json, model.safetensors, and generation_config.json where
// there is one.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/model/safetensors.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

class HfSource : public WeightSource {
 public:
  // Checks that the weights are exactly those of the configuration. A tensor that the architecture does not
  // know is an error: to leave it out would silently change the model.
  static absl::StatusOr<std::unique_ptr<HfSource>> Open(const std::string& directory);

  const ModelConfig& config() const override { return config_; }
  absl::Status ReadRows(TensorId id, int64_t row_begin, int64_t row_count,
                        absl::Span<Half> out) const override;
  std::string Fingerprint() const override;

 private:
  HfSource(std::string directory, ModelConfig config, std::unique_ptr<SafetensorsFile> file)
      : directory_(std::move(directory)), config_(std::move(config)), file_(std::move(file)) {}

  absl::Status CheckTensors() const;

  std::string directory_;
  ModelConfig config_;
  std::unique_ptr<SafetensorsFile> file_;
};

}  // namespace ridge::worker
