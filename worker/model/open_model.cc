#include "worker/model/open_model.h"

#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "worker/model/gguf_source.h"
#include "worker/model/hf_source.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {

absl::StatusOr<std::unique_ptr<WeightSource>> OpenModel(absl::string_view path_or_synthetic) {
  absl::string_view synthetic = path_or_synthetic;
  if (absl::ConsumePrefix(&synthetic, "synthetic:")) return OpenSynthetic(synthetic);
  const std::string path(path_or_synthetic);
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    return absl::NotFoundError(absl::StrCat(path, ": no such file or directory"));
  if (std::filesystem::is_directory(status)) return HfSource::Open(path);
  if (absl::EndsWith(path, ".safetensors")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": give the directory that holds it and config.json"));
  }
  return GgufSource::Open(path);
}

}  // namespace ridge::worker
