#include "worker/model/hf_source.h"

#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/hash.h"
#include "worker/model/half_rows.h"
#include "worker/model/hf_config.h"

namespace ridge::worker {
namespace {

std::string HfName(TensorId id) {
  const auto layer = [&](const char* name) { return absl::StrCat("model.layers.", id.layer, ".", name); };
  switch (id.role) {
    case TensorRole::kTokenEmbedding:
      return "model.embed_tokens.weight";
    case TensorRole::kAttentionNorm:
      return layer("input_layernorm.weight");
    case TensorRole::kQuery:
      return layer("self_attn.q_proj.weight");
    case TensorRole::kKey:
      return layer("self_attn.k_proj.weight");
    case TensorRole::kValue:
      return layer("self_attn.v_proj.weight");
    case TensorRole::kQueryBias:
      return layer("self_attn.q_proj.bias");
    case TensorRole::kKeyBias:
      return layer("self_attn.k_proj.bias");
    case TensorRole::kValueBias:
      return layer("self_attn.v_proj.bias");
    case TensorRole::kQueryNorm:
      return layer("self_attn.q_norm.weight");
    case TensorRole::kKeyNorm:
      return layer("self_attn.k_norm.weight");
    case TensorRole::kAttentionOutput:
      return layer("self_attn.o_proj.weight");
    case TensorRole::kMlpNorm:
      return layer("post_attention_layernorm.weight");
    case TensorRole::kGate:
      return layer("mlp.gate_proj.weight");
    case TensorRole::kUp:
      return layer("mlp.up_proj.weight");
    case TensorRole::kDown:
      return layer("mlp.down_proj.weight");
    case TensorRole::kFinalNorm:
      return "model.norm.weight";
    case TensorRole::kOutput:
      return "lm_head.weight";
  }
  RIDGE_CHECK(false);
  return "";
}

// Tensors that checkpoints carry although the configuration says the same: a copy of the tied embedding, and
// the rotary frequencies that older versions saved.
bool IsRedundant(const ModelConfig& config, const std::string& name) {
  return (config.tied_embedding && name == "lm_head.weight") || absl::EndsWith(name, ".rotary_emb.inv_freq");
}

absl::string_view AsText(const MappedFile& file) {
  return absl::string_view(file.bytes().data(), file.bytes().size());
}

absl::StatusOr<ModelConfig> ReadConfig(const std::filesystem::path& directory) {
  const std::string path = directory / "config.json";
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<ModelConfig> config = ConfigFromHfJson(AsText(*file), path);
  if (!config.ok()) return config;
  const std::filesystem::path full = std::filesystem::absolute(directory).lexically_normal();
  config->name = full.has_filename() ? full.filename().string() : full.parent_path().filename().string();
  const std::string generation_path = directory / "generation_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(generation_path, ignored)) {
    absl::StatusOr<MappedFile> generation = MappedFile::Open(generation_path);
    if (!generation.ok()) return generation.status();
    absl::Status status = AddGenerationConfig(AsText(*generation), generation_path, *config);
    if (!status.ok()) return status;
  }
  return config;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HfSource>> HfSource::Open(const std::string& directory) {
  const std::filesystem::path root(directory);
  absl::StatusOr<ModelConfig> config = ReadConfig(root);
  if (!config.ok()) return config.status();
  std::error_code ignored;
  if (std::filesystem::exists(root / "model.safetensors.index.json", ignored)) {
    return absl::UnimplementedError(absl::StrCat((root / "model.safetensors.index.json").string(),
                                                 ": weights in several files are not supported"));
  }
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(root / "model.safetensors");
  if (!file.ok()) return file.status();
  std::unique_ptr<HfSource> source(new HfSource(directory, *std::move(config), *std::move(file)));
  if (absl::Status status = source->CheckTensors(); !status.ok()) return status;
  return source;
}

absl::Status HfSource::CheckTensors() const {
  absl::flat_hash_set<std::string> expected;
  for (TensorId id : TensorsOf(config_)) {
    const std::string name = HfName(id);
    const TensorShape shape = ShapeOf(config_, id);
    const SafetensorsTensor* tensor = file_->FindTensor(name);
    if (tensor == nullptr)
      return absl::InvalidArgumentError(absl::StrCat(file_->path(), ": tensor ", name, ": missing"));
    if (tensor->rows != shape.rows || tensor->cols != shape.cols) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: %d x %d, expected %d x %d",
                                                        file_->path(), name, tensor->rows, tensor->cols,
                                                        shape.rows, shape.cols));
    }
    expected.insert(name);
  }
  for (const auto& [name, tensor] : file_->tensors()) {
    if (!expected.contains(name) && !IsRedundant(config_, name)) {
      return absl::UnimplementedError(absl::StrFormat("%s: tensor %s: not part of a %s model as supported",
                                                      file_->path(), absl::CHexEscape(name.substr(0, 80)),
                                                      ArchitectureName(config_.architecture)));
    }
  }
  return absl::OkStatus();
}

absl::Status HfSource::ReadRows(TensorId id, int64_t row_begin, int64_t row_count,
                                absl::Span<Half> out) const {
  const SafetensorsTensor* tensor = file_->FindTensor(HfName(id));
  RIDGE_CHECK(tensor != nullptr);
  RIDGE_CHECK(row_begin >= 0 && row_count >= 0 && row_begin + row_count <= tensor->rows);
  RIDGE_CHECK(static_cast<int64_t>(out.size()) == row_count * tensor->cols);
  const char* data = tensor->data.data() + row_begin * tensor->cols * tensor->element_bytes();
  int64_t bad = -1;
  if (tensor->type == SafetensorsType::kF16) {
    std::memcpy(out.data(), data, out.size() * sizeof(Half));
    bad = FindNotFinite(out);
  } else {
    std::vector<float> row(static_cast<size_t>(tensor->cols));
    for (int64_t r = 0; r < row_count && bad < 0; ++r) {
      if (tensor->type == SafetensorsType::kF32) {
        std::memcpy(row.data(), data + r * tensor->cols * 4, row.size() * sizeof(float));
      } else {
        ExpandBf16(data + r * tensor->cols * 2, absl::MakeSpan(row));
      }
      bad = ConvertToHalf(row, out.subspan(static_cast<size_t>(r * tensor->cols), row.size()));
      if (bad >= 0) bad += r * tensor->cols;
    }
  }
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: element %d of row %d does not fit fp16",
                                                    file_->path(), HfName(id), bad % tensor->cols,
                                                    row_begin + bad / tensor->cols));
}

std::string HfSource::Fingerprint() const {
  Sha256 hash;
  hash.Update(absl::StrCat("safetensors ", CanonicalText(config_), " ", TreeSha256Hex(file_->bytes())));
  absl::StatusOr<MappedFile> tokenizer =
      MappedFile::Open(std::filesystem::path(directory_) / "tokenizer.json");
  if (tokenizer.ok()) hash.Update(absl::StrCat(" ", TreeSha256Hex(tokenizer->bytes())));
  return hash.HexDigest();
}

}  // namespace ridge::worker
