#include "common/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace ridge {
namespace {

constexpr int64_t kReadBytes = 1 << 20;

}  // namespace

absl::StatusOr<int> OpenRegularFile(const std::string& path) {
  // Without O_NONBLOCK the opening of a pipe would wait for ever, before it can be seen that it is one.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  struct stat info;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return fd;
  close(fd);
  return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  const absl::StatusOr<int> fd = OpenRegularFile(path);
  if (!fd.ok()) return fd.status();
  const absl::Cleanup closed = [&] { close(*fd); };
  std::string text;
  for (;;) {
    const int64_t size = static_cast<int64_t>(text.size());
    if (size > max_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": larger than ", max_bytes >> 20, " MiB"));
    }
    text.resize(static_cast<size_t>(size + kReadBytes));
    const ssize_t count = read(*fd, text.data() + size, kReadBytes);
    text.resize(static_cast<size_t>(size + std::max<ssize_t>(count, 0)));
    if (count == 0) return text;
    if (count < 0 && errno != EINTR) {
      return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
    }
  }
}

}  // namespace ridge
