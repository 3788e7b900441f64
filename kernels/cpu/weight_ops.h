// What loading does with weights: numbers of a file become fp16 ones, with a check that they fit. Rounding is
// to the nearest, ties to even. Pure; any thread.
#pragma once

#include <cstdint>

#include "kernels/half.h"

namespace ridge::kernels::cpu {

// Each writes `size` numbers and says whether fp16 can hold all of them: finite, and within +-65,504 after
// rounding. Where it says no, what was written has no meaning. File bytes need no alignment.
bool WeightsFromF16(const char* from, int64_t size, Half* to);
bool WeightsFromBf16(const char* from, int64_t size, Half* to);
bool WeightsFromF32(const float* from, int64_t size, Half* to);

}  // namespace ridge::kernels::cpu
