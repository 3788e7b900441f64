// Zeroed, page-aligned memory straight from the system, in huge pages where there are some. Movable; freed by
// the destructor. Pages cost nothing until they are touched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace ridge::worker {

class PageMemory {
 public:
  // RESOURCE_EXHAUSTED saying how much is missing, where the machine has not that much to give.
  static absl::StatusOr<PageMemory> Allocate(int64_t bytes);

  PageMemory() = default;
  PageMemory(PageMemory&& other) noexcept;
  PageMemory& operator=(PageMemory&& other) noexcept;
  ~PageMemory();

  int64_t size_bytes() const { return size_; }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  PageMemory(void* data, int64_t size) : data_(data), size_(size) {}

  void* data_ = nullptr;
  int64_t size_ = 0;
};

// Of the machine, in bytes.
int64_t PhysicalMemory();

}  // namespace ridge::worker
