// The formats in which files store weights, and their values. One table: a format is a row in it and a
// function.
//
// A tensor's row is a sequence of blocks; blocks lie one after the other without padding. All numbers are
// little-endian. Values are computed in float32 by the operations that each function shows, in their order,
// so that they are the same bits everywhere.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace ridge::worker {

struct ElementType {
  const char* name;
  uint32_t ggml_id;  // GGUF's number
  int64_t block_elements;
  int64_t block_bytes;
  // Writes num_blocks * block_elements values. Pure; `blocks` needs no alignment.
  void (*dequantize)(const char* blocks, int64_t num_blocks, float* out);
};

extern const ElementType kF32;
extern const ElementType kF16;
extern const ElementType kBf16;

// nullptr for a format that is not supported.
const ElementType* FindGgmlType(uint32_t id);

// Their names, for messages: "F32, F16, ...".
const char* GgmlTypeNames();

}  // namespace ridge::worker
