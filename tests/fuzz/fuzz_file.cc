#include "tests/fuzz/fuzz_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include "common/check.h"

namespace ridge {

std::string FuzzFile(const uint8_t* data, size_t size) {
  static const int fd = memfd_create("fuzz", MFD_CLOEXEC);
  RIDGE_CHECK(fd >= 0 && ftruncate(fd, 0) == 0);
  RIDGE_CHECK(pwrite(fd, data, size, 0) == static_cast<ssize_t>(size));
  return "/proc/self/fd/" + std::to_string(fd);
}

void CheckError(const absl::Status& status, const std::string& path) {
  if (status.ok()) return;
  const absl::string_view message = status.message();
  RIDGE_CHECK(message.substr(0, path.size()) == path);
  RIDGE_CHECK(message.size() <= 2000);
  for (const char c : message) RIDGE_CHECK(static_cast<unsigned char>(c) >= ' ');
}

}  // namespace ridge
