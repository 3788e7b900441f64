#include "bench/records/gzip_file.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "zlib.h"

namespace ridge::bench {
namespace {

constexpr size_t kReadBytes = 1 << 20;

}  // namespace

absl::StatusOr<std::string> ReadGzip(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::string text;
  int count = 0;
  do {
    const size_t size = text.size();
    text.resize(size + kReadBytes);
    count = gzread(file, text.data() + size, kReadBytes);
    text.resize(size + static_cast<size_t>(std::max(count, 0)));
  } while (count > 0);
  int error = Z_OK;
  gzerror(file, &error);
  const bool whole = gzclose(file) == Z_OK && count == 0 && error == Z_OK;
  if (!whole) return absl::DataLossError(absl::StrCat(path, ": breaks off or is damaged"));
  return text;
}

absl::Status AppendGzip(const std::string& path, absl::string_view text) {
  const absl::Status failed = absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  gzFile file = gzopen(path.c_str(), "ab9");
  if (file == nullptr) return failed;
  const bool written = text.empty() || gzfwrite(text.data(), text.size(), 1, file) == 1;
  const bool closed = gzclose(file) == Z_OK;
  return written && closed ? absl::OkStatus() : failed;
}

}  // namespace ridge::bench
