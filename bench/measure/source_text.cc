#include "bench/measure/source_text.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "bench/records/gzip_file.h"
#include "common/status.h"

namespace ridge::bench {

absl::StatusOr<std::string> ReadSource(const std::string& path) {
  namespace fs = std::filesystem;
  absl::StatusOr<std::string> text = ReadGzip(path);
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (; absl::IsNotFound(text.status()) && fs::path(path).is_relative() && folder.has_relative_path();
       folder = folder.parent_path()) {
    text = ReadGzip(folder / path);
  }
  if (text.ok()) return text;
  if (!absl::IsNotFound(text.status())) return InvalidField("--source", text.status().message());
  return InvalidField("--source",
                      absl::StrCat(path, ": no such file; it names the text that prompts are cut from"));
}

}  // namespace ridge::bench
