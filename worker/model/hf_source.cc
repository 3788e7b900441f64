#include "worker/model/hf_source.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/hash.h"
#include "common/logging.h"
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

// A checkpoint may hold an output matrix although its configuration says that the embedding is used. Where
// the two are equal it is left out; where they differ the configuration is wrong.
bool OutputIsEmbedding(const TensorMap& tensors) {
  const StoredTensor* embedding = FindTensor(tensors, HfName({TensorRole::kTokenEmbedding}));
  const StoredTensor* output = FindTensor(tensors, HfName({TensorRole::kOutput}));
  if (embedding == nullptr || output == nullptr) return true;
  if (embedding->type != output->type || embedding->rows != output->rows || embedding->cols != output->cols) {
    return false;
  }
  const bool equal = std::ranges::equal(embedding->data, output->data);
  embedding->file->Drop(embedding->data);
  output->file->Drop(output->data);
  return equal;
}

// Tensors that checkpoints carry although the configuration says the same: a copy of the tied embedding, and
// the rotary frequencies that older versions saved.
bool IsRedundant(absl::string_view name, bool tied) {
  return (tied && name == "lm_head.weight") || absl::EndsWith(name, ".rotary_emb.inv_freq");
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

HfSource::HfSource(std::string directory, CheckpointFiles checkpoint)
    : FileSource({.name = HfName}), directory_(std::move(directory)), checkpoint_(std::move(checkpoint)) {}

absl::StatusOr<std::unique_ptr<HfSource>> HfSource::Open(const std::string& directory) {
  absl::StatusOr<ModelConfig> config = ReadConfig(directory);
  if (!config.ok()) return config.status();
  absl::StatusOr<CheckpointFiles> checkpoint = OpenCheckpointFiles(directory);
  if (!checkpoint.ok()) return checkpoint.status();
  if (config->tied_embedding && !OutputIsEmbedding(checkpoint->tensors)) {
    LogWarning("{}: tie_word_embeddings is true, but the file has another output matrix, which is used",
               directory);
    config->tied_embedding = false;
  }
  std::unique_ptr<HfSource> source(new HfSource(directory, *std::move(checkpoint)));
  const bool tied = config->tied_embedding;
  absl::Status status =
      source->Bind(*std::move(config), source->checkpoint_.tensors, source->checkpoint_.path,
                   [tied](absl::string_view name) { return IsRedundant(name, tied); });
  if (!status.ok()) return status;
  return source;
}

std::string HfSource::Identity() const {
  std::string identity = "safetensors";
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    const absl::StatusOr<MappedFile> file = MappedFile::Open(std::filesystem::path(directory_) / name);
    if (!file.ok()) continue;
    Sha256 hash;
    hash.Update(AsText(*file));
    absl::StrAppend(&identity, " ", name, ":", hash.HexDigest());
  }
  return identity;
}

}  // namespace ridge::worker
