#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "kernels/cuda/packing.h"

namespace ridge::kernels::cuda {
namespace {

// The driver's function, by way of the runtime: nothing links against the driver.
PFN_cuTensorMapEncodeTiled_v12000 Encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
      function = nullptr;
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return encoder;
}

// Dimensions from the innermost outwards; strides in bytes, of all but the innermost.
template <uint32_t kRank>
cudaError_t Encode(const Half* array, const cuuint64_t (&sizes)[kRank],
                   const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank],
                   CUtensorMapSwizzle swizzle, CUtensorMap* map) {
  if (Encoder() == nullptr) return cudaErrorNotSupported;
  cuuint32_t ones[kRank];
  for (cuuint32_t& one : ones) one = 1;
  const CUresult result = Encoder()(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, kRank, const_cast<Half*>(array),
                                    sizes, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace

bool CanMapTensors() {
  return Encoder() != nullptr;
}

cudaError_t MapRows(const Half* x, int32_t rows, int32_t columns, int32_t box_rows, CUtensorMap* map) {
  constexpr uint32_t kBoxColumns = 64;
  return Encode<2>(x, {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                   {static_cast<cuuint64_t>(columns) * sizeof(Half)},
                   {kBoxColumns, static_cast<cuuint32_t>(box_rows)}, CU_TENSOR_MAP_SWIZZLE_128B, map);
}

cudaError_t MapPacked(const Half* w, int32_t n, int32_t k, int32_t box_steps, int32_t box_tiles,
                      CUtensorMap* map) {
  constexpr cuuint64_t kTile = kTileSize;
  const auto depth = static_cast<cuuint64_t>(k / kTileDepth);
  return Encode<3>(w, {kTile, depth, static_cast<cuuint64_t>(NumRowTiles(n))},
                   {kTile * sizeof(Half), depth * kTile * sizeof(Half)},
                   {static_cast<cuuint32_t>(kTile), static_cast<cuuint32_t>(box_steps),
                    static_cast<cuuint32_t>(box_tiles)},
                   CU_TENSOR_MAP_SWIZZLE_NONE, map);
}

}  // namespace ridge::kernels::cuda
