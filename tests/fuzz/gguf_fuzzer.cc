// A GGUF file: its metadata, tensors, configuration and tokenizer.
#include <algorithm>
#include <vector>

#include "tests/fuzz/fuzz_file.h"
#include "worker/model/gguf_source.h"
#include "worker/text/gguf_tokenizer.h"
#include "worker/text/tokenizer.h"

namespace ridge::worker {
namespace {

void ReadFirstRows(const GgufSource& source, const std::string& path) {
  for (const TensorId id : TensorsOf(source.config())) {
    const TensorShape shape = ShapeOf(source.config(), id);
    const int64_t rows = std::min<int64_t>(shape.rows, 2);
    std::vector<Half> out(static_cast<size_t>(rows * shape.cols));
    CheckError(source.ReadRows(id, 0, rows, absl::MakeSpan(out)), path);
  }
}

}  // namespace
}  // namespace ridge::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = ridge::FuzzFile(data, size);
  const auto file = ridge::worker::GgufFile::Open(path);
  ridge::CheckError(file.status(), path);
  if (!file.ok()) return 0;
  absl::StatusOr<ridge::worker::TokenizerSpec> spec = ridge::worker::TokenizerSpecFromGguf(**file);
  ridge::CheckError(spec.status(), path);
  if (spec.ok()) {
    const auto tokenizer = ridge::worker::Tokenizer::Create(*std::move(spec));
    if (tokenizer.ok())
      (*tokenizer)->Encode("a text of 12 words\n<eos>", {.parse_special = true}).IgnoreError();
  }
  const auto source = ridge::worker::GgufSource::Open(path);
  ridge::CheckError(source.status(), path);
  if (source.ok()) ridge::worker::ReadFirstRows(**source, path);
  return 0;
}
