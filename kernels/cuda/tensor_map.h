// Descriptions of arrays for the copy engine (TMA, sm_90): a kernel that has one as a __grid_constant__
// parameter brings boxes of the array to shared memory by one instruction each, zeros where a box lies
// outside. Made on the host, in a microsecond; nothing is allocated.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/half.h"

namespace ridge::kernels::cuda {

// Whether the driver makes such descriptions.
bool CanMapTensors();

// fp16 rows [rows][columns], 16-byte aligned, columns a multiple of 8. A box is `box_rows` rows of 64
// columns: rows of 128 bytes whose 16-byte parts are swizzled by row % 8.
[[nodiscard]] cudaError_t MapRows(const Half* x, int32_t rows, int32_t columns, int32_t box_rows,
                                  CUtensorMap* map);

// A packed matrix [n][k] (packing.h). A box is `box_steps` tiles along k of `box_tiles` row tiles, as they
// are packed.
[[nodiscard]] cudaError_t MapPacked(const Half* w, int32_t n, int32_t k, int32_t box_steps, int32_t box_tiles,
                                    CUtensorMap* map);

}  // namespace ridge::kernels::cuda
