#include "worker/model/gguf_source.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/hash.h"
#include "worker/model/gguf_config.h"

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

}  // namespace

GgufSource::GgufSource(std::unique_ptr<GgufFile> file, const ModelFamily& family)
    : FileSource({.name = GgufName, .permuted_qk = family.gguf_permutes_qk}), file_(std::move(file)) {}

absl::StatusOr<std::unique_ptr<GgufSource>> GgufSource::Open(const std::string& path) {
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<ModelConfig> config = ConfigFromGguf(**file);
  if (!config.ok()) return config.status();
  std::unique_ptr<GgufSource> source(new GgufSource(*std::move(file), *FindFamily(config->architecture)));
  absl::Status status = source->Bind(*std::move(config), source->file_->tensors(), path,
                                     [](absl::string_view name) { return name == kRopeFactorsTensor; });
  if (!status.ok()) return status;
  return source;
}

// The header holds the tokenizer.
std::string GgufSource::Identity() const {
  Sha256 hash;
  hash.Update(absl::string_view(file_->header().data(), file_->header().size()));
  return absl::StrCat("gguf ", hash.HexDigest());
}

}  // namespace ridge::worker
