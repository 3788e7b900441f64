// The quantised formats behind element_type.h's table. Each function is the definition of its format.
#pragma once

#include <cstdint>

namespace ridge::worker {

// Blocks of 32 elements.
void DequantizeQ4_0(const char* blocks, int64_t num_blocks, float* out);
void DequantizeQ4_1(const char* blocks, int64_t num_blocks, float* out);
void DequantizeQ5_0(const char* blocks, int64_t num_blocks, float* out);
void DequantizeQ5_1(const char* blocks, int64_t num_blocks, float* out);
void DequantizeQ8_0(const char* blocks, int64_t num_blocks, float* out);

// Blocks of 256 elements in groups with small integer scales of their own.
void DequantizeQ2_K(const char* blocks, int64_t num_blocks, float* out);
void DequantizeQ3_K(const char* blocks, int64_t num_blocks, float* out);
void DequantizeQ4_K(const char* blocks, int64_t num_blocks, float* out);
void DequantizeQ5_K(const char* blocks, int64_t num_blocks, float* out);
void DequantizeQ6_K(const char* blocks, int64_t num_blocks, float* out);

}  // namespace ridge::worker
