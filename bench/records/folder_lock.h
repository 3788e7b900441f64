// A folder of records belongs to one run at a time: two that append to its files would spoil them.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace ridge::bench {

// Held until it is destroyed, or until the process ends in whatever way. Move-only.
class FolderLock {
 public:
  // FAILED_PRECONDITION "--out: DIR: another run writes there" where it is held, by this process too.
  static absl::StatusOr<FolderLock> Take(const std::string& folder);

  FolderLock(FolderLock&& other) noexcept : folder_(std::exchange(other.folder_, -1)) {}
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(folder_, other.folder_);
    return *this;
  }
  ~FolderLock();

 private:
  explicit FolderLock(int folder) : folder_(folder) {}

  int folder_;  // a descriptor, owned; -1: moved from
};

}  // namespace ridge::bench
