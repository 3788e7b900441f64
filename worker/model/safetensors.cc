#include "worker/model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/model/safetensors_header.h"

namespace ridge::worker {
namespace {

// Ten times what the largest published models need; bounds what reading a hostile header takes.
constexpr uint64_t kMaxHeaderBytes = 8 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  std::unique_ptr<SafetensorsFile> safetensors(new SafetensorsFile(*std::move(file)));
  if (absl::Status status = safetensors->Parse(); !status.ok()) return status;
  return safetensors;
}

absl::Status SafetensorsFile::Parse() {
  const absl::Span<const char> bytes = file_.bytes();
  uint64_t header_size;
  if (bytes.size() < sizeof(header_size)) {
    return absl::DataLossError(absl::StrCat(path(), ": truncated in the header's length"));
  }
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  if (header_size > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path(), ": a header of ", header_size, " bytes: not a safetensors file"));
  }
  if (header_size > bytes.size() - sizeof(header_size)) {
    return absl::DataLossError(absl::StrCat(path(), ": truncated in the header"));
  }
  const absl::Span<const char> header = bytes.subspan(sizeof(header_size), header_size);
  const absl::Span<const char> data = bytes.subspan(sizeof(header_size) + header_size);
  absl::StatusOr<std::vector<SafetensorsEntry>> entries = ReadSafetensorsHeader(header, path());
  if (!entries.ok()) return entries.status();
  // In the order of the data, which the tensors cover without a gap, and so without an overlap.
  std::sort(entries->begin(), entries->end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (SafetensorsEntry& entry : *entries) {
    const std::string name = absl::CHexEscape(entry.name.substr(0, 80));
    if (entry.end > data.size()) {
      return absl::DataLossError(absl::StrFormat("%s: tensor %s: ends at byte %u of %u: truncated?", path(),
                                                 name, entry.end, data.size()));
    }
    const StoredTensor tensor = {entry.type, entry.rows, entry.cols,
                                 data.subspan(entry.begin, entry.end - entry.begin), &file_};
    if (!tensors_.emplace(std::move(entry.name), tensor).second) {
      return absl::InvalidArgumentError(absl::StrCat(path(), ": tensor ", name, ": given twice"));
    }
    if (entry.begin != covered) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor %s: data_offsets: begins at byte %u, where the tensor before it ends at %u", path(),
          name, entry.begin, covered));
    }
    covered = entry.end;
  }
  if (covered != data.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %u bytes of data belong to no tensor", path(), data.size() - covered));
  }
  return absl::OkStatus();
}

}  // namespace ridge::worker
