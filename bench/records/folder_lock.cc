#include "bench/records/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ridge::bench {

absl::StatusOr<FolderLock> FolderLock::Take(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return absl::UnavailableError(absl::StrCat("--out: ", folder, ": ", strerror(errno)));
  FolderLock lock(descriptor);
  // Other errors: some file systems of a network do not lock a folder, and are used without.
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(absl::StrCat("--out: ", folder, ": another run writes there"));
  }
  return lock;
}

FolderLock::~FolderLock() {
  if (folder_ >= 0) close(folder_);
}

}  // namespace ridge::bench
