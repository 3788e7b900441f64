// Weights from a GGUF file of one of the families.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/model/family.h"
#include "worker/model/file_source.h"
#include "worker/model/gguf.h"

namespace ridge::worker {

class GgufSource : public FileSource {
 public:
  // Checks that the file holds exactly the tensors of its family, with their shapes.
  static absl::StatusOr<std::unique_ptr<GgufSource>> Open(const std::string& path);

  // For what else the file holds: the tokenizer.
  const GgufFile& file() const { return *file_; }

 private:
  GgufSource(std::unique_ptr<GgufFile> file, const ModelFamily& family);

  std::string Identity() const override;

  std::unique_ptr<GgufFile> file_;
};

}  // namespace ridge::worker
