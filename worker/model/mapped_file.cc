#include "worker/model/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/read_file.h"

namespace ridge::worker {
namespace {

absl::StatusOr<absl::Span<const char>> MapDescriptor(const std::string& path, int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (info.st_size == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": the file is empty"));
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot map"));
  madvise(data, size, MADV_SEQUENTIAL);
  return absl::MakeConstSpan(static_cast<const char*>(data), size);
}

// A page fault maps the pages around it, in windows of this size.
constexpr uintptr_t kWindow = 64 << 10;

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; older kernels refuse it, and fault page by page
#endif

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const absl::StatusOr<int> fd = OpenRegularFile(path);
  if (!fd.ok()) return fd.status();
  absl::StatusOr<absl::Span<const char>> bytes = MapDescriptor(path, *fd);
  close(*fd);
  if (!bytes.ok()) return bytes.status();
  return MappedFile(path, *bytes);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

void MappedFile::Prefetch(absl::Span<const char> part) const {
  Advise(part, MADV_WILLNEED);
}

void MappedFile::Populate(absl::Span<const char> part) const {
  Advise(part, MADV_POPULATE_READ);
}

void MappedFile::Drop(absl::Span<const char> part) const {
  Advise(part, MADV_DONTNEED);
}

// Applies to the windows that hold any of the part, within the mapping.
void MappedFile::Advise(absl::Span<const char> part, int advice) const {
  if (part.empty()) return;
  const uintptr_t file_begin = reinterpret_cast<uintptr_t>(bytes_.data());
  const uintptr_t part_begin = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t begin = std::max(part_begin & ~(kWindow - 1), file_begin);
  const uintptr_t end =
      std::min((part_begin + part.size() + kWindow - 1) & ~(kWindow - 1), file_begin + bytes_.size());
  madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace ridge::worker
