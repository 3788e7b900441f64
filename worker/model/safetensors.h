// One safetensors file: the directory of its tensors over the mapping.
//
// Format: eight bytes with the header's length, a JSON header {"name": {"dtype", "shape", "data_offsets"},
// ...}, the data. The header is read element by element with bounds, so that a hostile one costs an error
// naming file and tensor. Ownership: views point into the mapping. Threads: const members from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/model/mapped_file.h"

namespace ridge::worker {

enum class SafetensorsType { kF32, kF16, kBf16 };

struct SafetensorsTensor {
  SafetensorsType type;
  int64_t rows;  // the product of all dimensions but the last one
  int64_t cols;
  absl::Span<const char> data;  // exactly rows * cols elements

  int64_t element_bytes() const { return type == SafetensorsType::kF32 ? 4 : 2; }
};

class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  absl::Span<const char> bytes() const { return file_.bytes(); }

  const absl::btree_map<std::string, SafetensorsTensor>& tensors() const { return tensors_; }
  // nullptr where there is none.
  const SafetensorsTensor* FindTensor(const std::string& name) const;

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  absl::Status Parse();

  MappedFile file_;
  absl::btree_map<std::string, SafetensorsTensor> tensors_;
};

}  // namespace ridge::worker
