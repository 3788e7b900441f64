// The JSON header of a safetensors file, read event by event: a hostile header costs no memory beyond its
// tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/model/element_type.h"

namespace ridge::worker {

struct SafetensorsEntry {
  std::string name;
  const ElementType* type = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  uint64_t begin = 0;  // in the data; end - begin is rows * cols elements
  uint64_t end = 0;
};

// Entries in the order of the header; "__metadata__" is skipped. Offsets are consistent with type and shape,
// but not checked against the file. INVALID_ARGUMENT naming `path` and the tensor.
absl::StatusOr<std::vector<SafetensorsEntry>> ReadSafetensorsHeader(absl::Span<const char> header,
                                                                    const std::string& path);

}  // namespace ridge::worker
