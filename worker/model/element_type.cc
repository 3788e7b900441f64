#include "worker/model/element_type.h"

#include <cstring>

#include "kernels/half.h"
#include "worker/model/block_formats.h"

namespace ridge::worker {
namespace {

uint16_t Load16(const char* data) {
  uint16_t bits;
  std::memcpy(&bits, data, sizeof(bits));
  return bits;
}

void ExpandF32(const char* data, int64_t count, float* out) {
  std::memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
}

void ExpandF16(const char* data, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = kernels::HalfToFloat(Load16(data + 2 * i));
}

// The upper half of a float.
void ExpandBf16(const char* data, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = uint32_t{Load16(data + 2 * i)} << 16;
    std::memcpy(&out[i], &bits, sizeof(bits));
  }
}

}  // namespace

const ElementType kF32 = {"F32", 0, 1, 4, ExpandF32};
const ElementType kF16 = {"F16", 1, 1, 2, ExpandF16};
const ElementType kBf16 = {"BF16", 30, 1, 2, ExpandBf16};

namespace {

constexpr ElementType kQuantised[] = {
    {"Q4_0", 2, 32, 18, DequantizeQ4_0},    {"Q4_1", 3, 32, 20, DequantizeQ4_1},
    {"Q5_0", 6, 32, 22, DequantizeQ5_0},    {"Q5_1", 7, 32, 24, DequantizeQ5_1},
    {"Q8_0", 8, 32, 34, DequantizeQ8_0},    {"Q2_K", 10, 256, 84, DequantizeQ2_K},
    {"Q3_K", 11, 256, 110, DequantizeQ3_K}, {"Q4_K", 12, 256, 144, DequantizeQ4_K},
    {"Q5_K", 13, 256, 176, DequantizeQ5_K}, {"Q6_K", 14, 256, 210, DequantizeQ6_K},
};

}  // namespace

const ElementType* FindGgmlType(uint32_t id) {
  for (const ElementType* type : {&kF32, &kF16, &kBf16}) {
    if (type->ggml_id == id) return type;
  }
  for (const ElementType& type : kQuantised) {
    if (type.ggml_id == id) return &type;
  }
  return nullptr;
}

const char* GgmlTypeNames() {
  return "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K and Q6_K";
}

}  // namespace ridge::worker
