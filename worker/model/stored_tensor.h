// A tensor as it lies in a mapped file, whatever the file's format.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/model/element_type.h"
#include "worker/model/mapped_file.h"

namespace ridge::worker {

struct StoredTensor {
  const ElementType* type;
  int64_t rows;                 // the product of all dimensions but the fastest one
  int64_t cols;                 // the fastest dimension; whole blocks of the type
  absl::Span<const char> data;  // exactly rows * cols elements, in the mapping
  const MappedFile* file;

  int64_t row_bytes() const { return cols / type->block_elements * type->block_bytes; }
};

// By the names that the file gives them.
using TensorMap = absl::btree_map<std::string, StoredTensor>;

// nullptr where there is none.
inline const StoredTensor* FindTensor(const TensorMap& tensors, absl::string_view name) {
  const auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

}  // namespace ridge::worker
