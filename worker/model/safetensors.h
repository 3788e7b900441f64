// One safetensors file: the directory of its tensors over the mapping.
//
// Format: eight bytes with the header's length, a JSON header {"name": {"dtype", "shape", "data_offsets"},
// ...}, the data. The header is read element by element with bounds, so that a hostile one costs an error
// naming file and tensor. Ownership: views point into the mapping. Threads: const members from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/model/mapped_file.h"
#include "worker/model/stored_tensor.h"

namespace ridge::worker {

class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const TensorMap& tensors() const { return tensors_; }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  absl::Status Parse();

  MappedFile file_;
  TensorMap tensors_;
};

}  // namespace ridge::worker
