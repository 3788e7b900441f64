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

GgufSource::GgufSource(GgufParts parts, const ModelFamily& family)
    : FileSource({.name = GgufName, .permuted_qk = family.gguf_permutes_qk}), parts_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<GgufSource>> GgufSource::Open(const std::string& path) {
  absl::StatusOr<GgufParts> parts = OpenGgufParts(path);
  if (!parts.ok()) return parts.status();
  absl::StatusOr<ModelConfig> config = ConfigFromGguf(*parts->files[0], parts->tensors);
  if (!config.ok()) return config.status();
  std::unique_ptr<GgufSource> source(new GgufSource(*std::move(parts), *FindFamily(config->architecture)));
  absl::Status status = source->Bind(*std::move(config), source->parts_.tensors, path,
                                     [](absl::string_view name) { return name == kRopeFactorsTensor; });
  if (!status.ok()) return status;
  return source;
}

// The first header holds the tokenizer.
std::string GgufSource::Identity() const {
  Sha256 hash;
  for (const std::unique_ptr<GgufFile>& file : parts_.files) {
    hash.Update(absl::string_view(file->header().data(), file->header().size()));
  }
  return absl::StrCat("gguf ", hash.HexDigest());
}

}  // namespace ridge::worker
