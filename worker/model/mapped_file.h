// A file mapped read-only. Movable; unmapped by the destructor. Threads: const members from any thread.
// A file that shrinks while it is mapped ends the process (SIGBUS), as with every mapped reader.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ridge::worker {

class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT (not a regular file, empty) naming the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  absl::Span<const char> bytes() const { return bytes_; }

  // Hints about a part of bytes(). Prefetch asks the kernel to read it from the disk in the background.
  // Populate maps at once what is read next, instead of page by page. Drop takes it out of this process'
  // memory: what is read again comes from the page cache, or from the disk.
  void Prefetch(absl::Span<const char> part) const;
  void Populate(absl::Span<const char> part) const;
  void Drop(absl::Span<const char> part) const;

 private:
  MappedFile(std::string path, absl::Span<const char> bytes) : path_(std::move(path)), bytes_(bytes) {}

  void Advise(absl::Span<const char> part, int advice) const;

  std::string path_;
  absl::Span<const char> bytes_;  // the mapping; empty after a move
};

}  // namespace ridge::worker
