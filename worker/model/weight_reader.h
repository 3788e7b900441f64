// Reads a model's weights once, on all threads, in the way that files like best.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cpu/thread_pool.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

// Takes rows [row_begin, row_begin + rows.size() / cols) of a tensor. The rows are the caller's again when it
// returns.
using RowSink = std::function<void(TensorId id, int64_t row_begin, absl::Span<const Half> rows)>;

// Gives every row of every tensor to `sink` once, in runs of at most WeightSource::kLeafRows rows, from all
// threads of the pool at once. What comes next is asked for ahead, what was read is dropped, so that no more
// than a few MiB of a file are mapped into memory; the fingerprint is a by-product. Logs a line every two
// seconds. The source's first error.
absl::Status ReadWeights(const WeightSource& source, kernels::cpu::ThreadPool* pool, const RowSink& sink);

}  // namespace ridge::worker
