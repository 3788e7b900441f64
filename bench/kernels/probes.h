// How fast the machine's threads together can read memory, and multiply and add: what kernels are measured
// against, in the same process and run.
#pragma once

#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace ridge::bench {

// Bytes a second at which the pool's threads read `bytes` at `data`, each its share, once: the fastest of a
// few ways to ask for them (with the hardware's prefetcher alone, and with prefetches at several distances).
double ReadBandwidth(kernels::cpu::ThreadPool* pool, const void* data, int64_t bytes);

// Floating-point operations a second of fused multiply-adds on registers, of all threads together.
double MultiplyAddRate(kernels::cpu::ThreadPool* pool);

}  // namespace ridge::bench
