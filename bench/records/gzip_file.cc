#include "bench/records/gzip_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/read_file.h"
#include "zlib.h"

namespace ridge::bench {
namespace {

constexpr size_t kReadBytes = 1 << 20;
constexpr size_t kMaxTextBytes = 1 << 30;
constexpr int kGzipWindow = 15 + 16;  // zlib's way to say: the largest, in gzip's format

// By errno.
absl::Status Failed(const std::string& path, absl::string_view what) {
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be ", what));
}

// `text` as a member of a gzip file.
std::string Deflate(absl::string_view text) {
  z_stream stream{};
  RIDGE_CHECK(deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) ==
              Z_OK);
  std::string member(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));  // which is only read
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(member.data());
  stream.avail_out = static_cast<uInt>(member.size());
  RIDGE_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  member.resize(stream.total_out);
  deflateEnd(&stream);
  return member;
}

// Bytes of the member that `bytes` begin with; 0 where it is none or damaged, nothing where it breaks off.
std::optional<size_t> MemberSize(absl::string_view bytes) {
  z_stream stream{};
  RIDGE_CHECK(inflateInit2(&stream, kGzipWindow) == Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // which is only read
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string text(kReadBytes, '\0');
  int result = Z_OK;
  while (result == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(text.data());
    stream.avail_out = static_cast<uInt>(text.size());
    result = inflate(&stream, Z_NO_FLUSH);
  }
  const size_t size = stream.total_in;
  inflateEnd(&stream);
  if (result == Z_STREAM_END) return size;
  return result == Z_BUF_ERROR ? std::nullopt : std::optional<size_t>(0);
}

}  // namespace

absl::StatusOr<std::string> ReadGzip(const std::string& path) {
  const absl::StatusOr<int> fd = OpenRegularFile(path);
  if (!fd.ok()) return fd.status();
  gzFile file = gzdopen(*fd, "rb");
  RIDGE_CHECK(file != nullptr);
  std::string text;
  int count = 0;
  do {
    const size_t size = text.size();
    text.resize(size + kReadBytes);
    count = gzread(file, text.data() + size, kReadBytes);
    text.resize(size + static_cast<size_t>(std::max(count, 0)));
  } while (count > 0 && text.size() <= kMaxTextBytes);
  if (text.size() > kMaxTextBytes) {
    gzclose(file);
    return absl::InvalidArgumentError(absl::StrCat(path, ": larger than ", kMaxTextBytes >> 20, " MiB"));
  }
  int error = Z_OK;
  gzerror(file, &error);
  const bool whole = gzclose(file) == Z_OK && count == 0 && error == Z_OK;
  if (!whole) return absl::DataLossError(absl::StrCat(path, ": breaks off or is damaged"));
  return text;
}

absl::Status AppendGzip(const std::string& path, absl::string_view text) {
  const std::string member = Deflate(text);
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return Failed(path, "written");
  const off_t before = lseek(file, 0, SEEK_END);
  absl::Status status;
  for (absl::string_view rest = member; !rest.empty() && status.ok();) {
    const ssize_t count = write(file, rest.data(), rest.size());
    if (count >= 0) {
      rest.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      status = Failed(path, "written");
    }
  }
  // Best effort: a half that stays all the same is cut off when the file is opened again.
  if (!status.ok() && before >= 0 && ftruncate(file, before) == 0 && before == 0) unlink(path.c_str());
  if (close(file) != 0) status.Update(Failed(path, "written"));
  return status;
}

absl::StatusOr<bool> CutHalfMember(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadFile(path, kMaxTextBytes);
  if (!bytes.ok()) return absl::IsNotFound(bytes.status()) ? false : absl::StatusOr<bool>(bytes.status());
  size_t whole = 0;
  while (whole < bytes->size()) {
    const std::optional<size_t> size = MemberSize(absl::string_view(*bytes).substr(whole));
    if (!size.has_value()) break;  // half of one
    if (*size == 0) return false;  // none, or damaged
    whole += *size;
  }
  if (whole == bytes->size() && whole > 0) return false;  // an empty file is the beginning of one
  std::error_code error;
  if (whole == 0) {
    std::filesystem::remove(path, error);
  } else {
    std::filesystem::resize_file(path, whole, error);
  }
  if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
  return true;
}

}  // namespace ridge::bench
