// Weights from a GGUF file: general.architecture "llama" or "qwen2".
#pragma once

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "worker/model/gguf.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

class GgufSource : public WeightSource {
 public:
  // Checks that the file holds exactly the tensors of its architecture, with their shapes. A tensor that the
  // architecture does not know (a bias, a norm) is an error: to leave it out would silently change the model.
  static absl::StatusOr<std::unique_ptr<GgufSource>> Open(const std::string& path);

  // For what else the file holds: the tokenizer.
  const GgufFile& file() const { return *file_; }

  const ModelConfig& config() const override { return config_; }
  absl::Status ReadRows(TensorId id, int64_t row_begin, int64_t row_count,
                        absl::Span<Half> out) const override;
  std::string Fingerprint() const override;

 private:
  GgufSource(std::unique_ptr<GgufFile> file, ModelConfig config)
      : file_(std::move(file)), config_(std::move(config)) {}

  absl::Status CheckTensors() const;

  std::unique_ptr<GgufFile> file_;
  ModelConfig config_;
};

}  // namespace ridge::worker
