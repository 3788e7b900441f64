#include "tests/fuzz/counting_new.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> held{0};
std::atomic<int64_t> peak{0};
std::atomic<int64_t> base{0};

void* Count(void* memory) {
  if (memory == nullptr) std::abort();
  const int64_t now = held += static_cast<int64_t>(malloc_usable_size(memory));
  for (int64_t old = peak; now > old && !peak.compare_exchange_weak(old, now);) {
  }
  return memory;
}

void Release(void* memory) {
  if (memory != nullptr) held -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

void* Aligned(size_t size, std::align_val_t alignment) {
  void* memory = nullptr;
  return posix_memalign(&memory, static_cast<size_t>(alignment), size) == 0 ? memory : nullptr;
}

}  // namespace

namespace ridge {

void RestartPeakAllocation() {
  base = held.load();
  peak = held.load();
}

int64_t PeakAllocation() {
  return peak - base;
}

}  // namespace ridge

void* operator new(size_t size) {
  return Count(std::malloc(size == 0 ? 1 : size));
}
void* operator new(size_t size, std::align_val_t alignment) {
  return Count(Aligned(size, alignment));
}
void operator delete(void* memory) noexcept {
  Release(memory);
}
void operator delete(void* memory, size_t) noexcept {
  Release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  Release(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  Release(memory);
}
