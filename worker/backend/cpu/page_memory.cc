#include "worker/backend/cpu/page_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"

namespace ridge::worker {
namespace {

// What the kernel thinks can be had without swapping; everything where it does not say.
int64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  int64_t kib;
  while (file >> name >> kib) {
    if (name == "MemAvailable:") return kib * 1024;
    std::getline(file, unit);
  }
  return PhysicalMemory();
}

}  // namespace

int64_t PhysicalMemory() {
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
}

absl::StatusOr<PageMemory> PageMemory::Allocate(int64_t bytes) {
  if (bytes == 0) return PageMemory();
  const int64_t available = AvailableMemory();
  if (bytes > available) {
    return absl::ResourceExhaustedError(absl::StrFormat("%d MiB of memory are needed, %d MiB are missing",
                                                        bytes >> 20, ((bytes - available) >> 20) + 1));
  }
  void* data =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrFormat("%d MiB of memory cannot be mapped", bytes >> 20));
  }
  constexpr int64_t kHugePage = 2 << 20;
  if (bytes >= kHugePage) madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return PageMemory(data, bytes);
}

PageMemory::PageMemory(PageMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

PageMemory::~PageMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
}

}  // namespace ridge::worker
