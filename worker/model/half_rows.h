// Rounding of weights to fp16, as every loader does it.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

// Rounds to nearest even. Returns the index of the first value that fp16 cannot hold (beyond +-65,504 after
// rounding, or not finite), or -1. Sizes are equal.
int64_t ConvertToHalf(absl::Span<const float> values, absl::Span<Half> out);

// The index of the first value that is infinite or not a number, or -1.
int64_t FindNotFinite(absl::Span<const Half> values);

// bfloat16 bits to their values; `data` holds out.size() of them and needs no alignment.
void ExpandBf16(const char* data, absl::Span<float> out);

}  // namespace ridge::worker
