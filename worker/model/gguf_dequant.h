// The block formats of GGUF ("ggml types") and their values. One table: a format is a row in it and a
// function.
#pragma once

#include <cstdint>

namespace ridge::worker {

struct GgmlType {
  uint32_t id;  // as in the file
  const char* name;
  int64_t block_elements;
  int64_t block_bytes;
  // Writes num_blocks * block_elements values. Pure; `blocks` needs no alignment.
  void (*dequantize)(const char* blocks, int64_t num_blocks, float* out);
};

inline constexpr uint32_t kGgmlF32 = 0;
inline constexpr uint32_t kGgmlF16 = 1;
inline constexpr uint32_t kGgmlQ4_1 = 3;
inline constexpr uint32_t kGgmlQ8_0 = 8;

// nullptr for a format that is not supported.
const GgmlType* FindGgmlType(uint32_t id);

}  // namespace ridge::worker
