// Weights from a GGUF model of one of the families, in one file or in several.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/model/family.h"
#include "worker/model/file_source.h"
#include "worker/model/gguf.h"
#include "worker/model/gguf_parts.h"

namespace ridge::worker {

class GgufSource : public FileSource {
 public:
  // `path` is the file, or the first of several (gguf_parts.h). Checks that it holds exactly the tensors of
  // its family, with their shapes.
  static absl::StatusOr<std::unique_ptr<GgufSource>> Open(const std::string& path);

  // For what else the file holds: the tokenizer.
  const GgufFile& file() const { return *parts_.files[0]; }

 private:
  GgufSource(GgufParts parts, const ModelFamily& family);

  std::string Identity() const override;

  GgufParts parts_;
};

}  // namespace ridge::worker
