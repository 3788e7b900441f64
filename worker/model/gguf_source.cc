#include "worker/model/gguf_source.h"

#include <cstring>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/hash.h"
#include "worker/model/gguf_config.h"
#include "worker/model/half_rows.h"

namespace ridge::worker {
namespace {

std::string GgufName(TensorId id) {
  const auto layer = [&](const char* name) { return absl::StrCat("blk.", id.layer, ".", name); };
  switch (id.role) {
    case TensorRole::kTokenEmbedding:
      return "token_embd.weight";
    case TensorRole::kAttentionNorm:
      return layer("attn_norm.weight");
    case TensorRole::kQuery:
      return layer("attn_q.weight");
    case TensorRole::kKey:
      return layer("attn_k.weight");
    case TensorRole::kValue:
      return layer("attn_v.weight");
    case TensorRole::kQueryBias:
      return layer("attn_q.bias");
    case TensorRole::kKeyBias:
      return layer("attn_k.bias");
    case TensorRole::kValueBias:
      return layer("attn_v.bias");
    case TensorRole::kQueryNorm:
      return layer("attn_q_norm.weight");
    case TensorRole::kKeyNorm:
      return layer("attn_k_norm.weight");
    case TensorRole::kAttentionOutput:
      return layer("attn_output.weight");
    case TensorRole::kMlpNorm:
      return layer("ffn_norm.weight");
    case TensorRole::kGate:
      return layer("ffn_gate.weight");
    case TensorRole::kUp:
      return layer("ffn_up.weight");
    case TensorRole::kDown:
      return layer("ffn_down.weight");
    case TensorRole::kFinalNorm:
      return "output_norm.weight";
    case TensorRole::kOutput:
      return "output.weight";
  }
  RIDGE_CHECK(false);
  return "";
}

// Converters to GGUF store the rows of each head of a llama model's q and k in the order in which its rotary
// pairs are neighbours: row 2 j + s holds what belongs at s * head_dim / 2 + j. Other architectures keep
// Hugging Face's order.
bool IsPermuted(const ModelConfig& config, TensorRole role) {
  return config.architecture == Architecture::kLlama &&
         (role == TensorRole::kQuery || role == TensorRole::kKey || role == TensorRole::kQueryBias ||
          role == TensorRole::kKeyBias);
}

int64_t RowInFile(int64_t row, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  const int64_t in_head = row % head_dim;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

// A bias is one row; its elements are permuted as the rows of the matrix are.
void UndoElementPermutation(int64_t head_dim, absl::Span<Half> row) {
  const std::vector<Half> stored(row.begin(), row.end());
  for (size_t i = 0; i < row.size(); ++i)
    row[i] = stored[static_cast<size_t>(RowInFile(static_cast<int64_t>(i), head_dim))];
}

// Rows that follow each other in the file.
absl::Status ReadStoredRows(const GgufFile& file, const GgufTensor& tensor, int64_t row_begin,
                            int64_t row_count, absl::Span<float> floats, absl::Span<Half> out) {
  const absl::Span<const char> data =
      tensor.data.subspan(static_cast<size_t>(row_begin * tensor.row_bytes()),
                          static_cast<size_t>(row_count * tensor.row_bytes()));
  int64_t bad = -1;
  if (tensor.type->id == kGgmlF16) {
    std::memcpy(out.data(), data.data(), data.size());
    bad = FindNotFinite(out);
  } else {
    for (int64_t row = 0; row < row_count && bad < 0; ++row) {
      tensor.type->dequantize(data.data() + row * tensor.row_bytes(),
                              tensor.cols / tensor.type->block_elements, floats.data());
      bad = ConvertToHalf(
          floats, out.subspan(static_cast<size_t>(row * tensor.cols), static_cast<size_t>(tensor.cols)));
      if (bad >= 0) bad += row * tensor.cols;
    }
  }
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: element %d of row %d does not fit fp16",
                                                    file.path(), tensor.name, bad % tensor.cols,
                                                    row_begin + bad / tensor.cols));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufSource>> GgufSource::Open(const std::string& path) {
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<ModelConfig> config = ConfigFromGguf(**file);
  if (!config.ok()) return config.status();
  std::unique_ptr<GgufSource> source(new GgufSource(*std::move(file), *std::move(config)));
  if (absl::Status status = source->CheckTensors(); !status.ok()) return status;
  return source;
}

absl::Status GgufSource::CheckTensors() const {
  absl::flat_hash_set<std::string> expected;
  for (TensorId id : TensorsOf(config_)) {
    const std::string name = GgufName(id);
    const TensorShape shape = ShapeOf(config_, id);
    const GgufTensor* tensor = file_->FindTensor(name);
    if (tensor == nullptr)
      return absl::InvalidArgumentError(absl::StrCat(file_->path(), ": tensor ", name, ": missing"));
    if (tensor->rows != shape.rows || tensor->cols != shape.cols) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: %d x %d, expected %d x %d",
                                                        file_->path(), name, tensor->rows, tensor->cols,
                                                        shape.rows, shape.cols));
    }
    expected.insert(name);
  }
  if (!config_.rope_divisors.empty()) expected.insert(kRopeFactorsTensor);
  for (const GgufTensor& tensor : file_->tensors()) {
    if (!expected.contains(tensor.name)) {
      return absl::UnimplementedError(absl::StrFormat(
          "%s: tensor %s: not part of a %s model as supported", file_->path(),
          absl::CHexEscape(tensor.name.substr(0, 80)), ArchitectureName(config_.architecture)));
    }
  }
  return absl::OkStatus();
}

absl::Status GgufSource::ReadRows(TensorId id, int64_t row_begin, int64_t row_count,
                                  absl::Span<Half> out) const {
  const GgufTensor* tensor = file_->FindTensor(GgufName(id));
  RIDGE_CHECK(tensor != nullptr);
  RIDGE_CHECK(row_begin >= 0 && row_count >= 0 && row_begin + row_count <= tensor->rows);
  RIDGE_CHECK(static_cast<int64_t>(out.size()) == row_count * tensor->cols);
  std::vector<float> floats(static_cast<size_t>(tensor->cols));
  const bool permuted = IsPermuted(config_, id.role);
  if (!permuted || tensor->rows == 1) {
    if (absl::Status s = ReadStoredRows(*file_, *tensor, row_begin, row_count, absl::MakeSpan(floats), out);
        !s.ok())
      return s;
    if (permuted && row_count == 1) UndoElementPermutation(config_.head_dim, out);
    return absl::OkStatus();
  }
  for (int64_t i = 0; i < row_count; ++i) {
    const int64_t stored = RowInFile(row_begin + i, config_.head_dim);
    const absl::Span<Half> row =
        out.subspan(static_cast<size_t>(i * tensor->cols), static_cast<size_t>(tensor->cols));
    if (absl::Status s = ReadStoredRows(*file_, *tensor, stored, 1, absl::MakeSpan(floats), row); !s.ok())
      return s;
  }
  return absl::OkStatus();
}

std::string GgufSource::Fingerprint() const {
  Sha256 hash;
  hash.Update(absl::StrCat("gguf ", CanonicalText(config_), " ", TreeSha256Hex(file_->bytes())));
  return hash.HexDigest();
}

}  // namespace ridge::worker
