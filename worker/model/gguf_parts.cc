#include "worker/model/gguf_parts.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ridge::worker {
namespace {

constexpr char kCount[] = "split.count", kNumber[] = "split.no", kTensors[] = "split.tensors.count";
constexpr int64_t kMaxParts = 1000;

absl::Status Error(const GgufFile& file, absl::string_view key, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": metadata ", key, ": ", what));
}

std::string Ending(int64_t number, int64_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", number + 1, count);
}

absl::StatusOr<int64_t> NumberOf(const GgufFile& file, absl::string_view key, int64_t limit) {
  absl::StatusOr<int64_t> value = file.GetInt(key);
  if (!value.ok()) return absl::InvalidArgumentError(value.status().message());
  if (*value < 0 || *value >= limit)
    return Error(file, key, absl::StrCat(*value, " is not in [0, ", limit, ")"));
  return value;
}

// The path without its ending; the file has to be the first of `count`.
absl::StatusOr<std::string> StemOf(const GgufFile& first, int64_t count) {
  absl::StatusOr<int64_t> number = NumberOf(first, kNumber, count);
  if (!number.ok()) return number.status();
  const std::string own = Ending(*number, count);
  if (!absl::EndsWith(first.path(), own)) {
    return Error(
        first, kCount,
        absl::StrCat("part ", *number + 1, " of a model in ", count, " files, but its name does not end in ",
                     own, "; give it its name back, or merge the files with llama-gguf-split --merge"));
  }
  if (*number != 0) {
    return Error(first, kNumber,
                 absl::StrCat("part ", *number + 1, " of a model in ", count,
                              " files; give the first one, that ends in ", Ending(0, count)));
  }
  return first.path().substr(0, first.path().size() - own.size());
}

absl::StatusOr<std::unique_ptr<GgufFile>> OpenPart(const std::string& path, int64_t number, int64_t count) {
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<int64_t> own_count = NumberOf(**file, kCount, kMaxParts),
                                own_number = NumberOf(**file, kNumber, kMaxParts);
  if (!own_count.ok()) return own_count.status();
  if (!own_number.ok()) return own_number.status();
  if (*own_count != count)
    return Error(**file, kCount, absl::StrCat(*own_count, ", where the first part has ", count));
  if (*own_number != number) return Error(**file, kNumber, absl::StrCat(*own_number, ", expected ", number));
  return file;
}

absl::Status AddTensors(const GgufFile& file, TensorMap* all) {
  for (const auto& [name, tensor] : file.tensors()) {
    if (all->emplace(name, tensor).second) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": tensor ", absl::CHexEscape(name.substr(0, 80)), ": another part has it too"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufParts> OpenGgufParts(const std::string& path) {
  absl::StatusOr<std::unique_ptr<GgufFile>> first = GgufFile::Open(path);
  if (!first.ok()) return first.status();
  GgufParts parts;
  parts.tensors = (*first)->tensors();
  parts.files.push_back(*std::move(first));
  const GgufFile& file = *parts.files[0];
  if (!file.Has(kCount)) return parts;
  const absl::StatusOr<int64_t> count = NumberOf(file, kCount, kMaxParts);
  if (!count.ok()) return count.status();
  if (*count <= 1) return parts;

  const absl::StatusOr<std::string> stem = StemOf(file, *count);
  if (!stem.ok()) return stem.status();
  for (int64_t number = 1; number < *count; ++number) {
    absl::StatusOr<std::unique_ptr<GgufFile>> part =
        OpenPart(absl::StrCat(*stem, Ending(number, *count)), number, *count);
    if (!part.ok()) return part.status();
    if (absl::Status status = AddTensors(**part, &parts.tensors); !status.ok()) return status;
    parts.files.push_back(*std::move(part));
  }
  if (file.Has(kTensors)) {
    const absl::StatusOr<int64_t> tensors = file.GetInt(kTensors);
    if (!tensors.ok()) return tensors.status();
    if (*tensors != static_cast<int64_t>(parts.tensors.size())) {
      return Error(file, kTensors, absl::StrCat(*tensors, ", where the parts have ", parts.tensors.size()));
    }
  }
  return parts;
}

}  // namespace ridge::worker
