#include "worker/service/served_model.h"

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/logging.h"
#include "common/status.h"
#include "worker/model/gguf_source.h"
#include "worker/service/default_sampling.h"
#include "worker/text/gguf_tokenizer.h"

namespace ridge::worker {
namespace {

// What the command line says rather than what the file says of itself: there names are rarely what people
// call the model.
std::string NameOf(const WorkerConfig& config) {
  if (!config.served_model_name.empty()) return config.served_model_name;
  if (absl::StartsWith(config.model, "synthetic:")) return config.model;
  std::filesystem::path path = std::filesystem::path(config.model).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // "dir/"
  return std::string(absl::StripSuffix(path.filename().string(), ".gguf"));
}

absl::StatusOr<int32_t> ContextOf(const WorkerConfig& config, const ModelConfig& model) {
  if (config.max_context == 0) return model.context_length;
  if (config.max_context > model.context_length) {
    return InvalidField("--max_context",
                        absl::StrCat(config.max_context, " is more than the model's ", model.context_length));
  }
  return config.max_context;
}

// nullptr where the model has none.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const WorkerConfig& config,
                                                         const WeightSource& source) {
  const auto* gguf = dynamic_cast<const GgufSource*>(&source);
  if (gguf == nullptr) {
    LogWarning("{}: no tokenizer; requests give prompt_ids and get no text", config.model);
    return nullptr;
  }
  absl::StatusOr<TokenizerSpec> spec = TokenizerSpecFromGguf(gguf->file());
  if (absl::IsNotFound(spec.status())) {
    LogWarning("{}; requests give prompt_ids and get no text", std::string(spec.status().message()));
    return nullptr;
  }
  if (!spec.ok()) return spec.status();
  const size_t vocab_size = source.config().vocab_size;
  if (spec->tokens.size() > vocab_size) {
    return InvalidField(config.model, absl::StrCat("the tokenizer has ", spec->tokens.size(),
                                                   " tokens, the model ", vocab_size));
  }
  // Output matrices are padded to round sizes; such ids can be drawn, and have no text.
  spec->tokens.resize(vocab_size, {.bytes = "", .kind = TokenKind::kUnused});
  return Tokenizer::Create(*std::move(spec));
}

absl::StatusOr<std::optional<ChatTemplate>> LoadChatTemplate(const WorkerConfig& config,
                                                             const Tokenizer* tokenizer) {
  if (!config.chat_template.empty()) {
    if (tokenizer == nullptr) return InvalidField("--chat_template", "the model has no tokenizer");
    absl::StatusOr<ChatTemplate> named = ChatTemplate::FromName(config.chat_template);
    if (!named.ok()) return InvalidField("--chat_template", named.status().message());
    return *std::move(named);
  }
  if (tokenizer == nullptr || tokenizer->chat_template().empty()) return std::nullopt;
  absl::StatusOr<ChatTemplate> known = ChatTemplate::Recognise(tokenizer->chat_template());
  if (known.ok()) return *std::move(known);
  LogWarning("chat is not available: {} (--chat_template)", std::string(known.status().message()));
  return std::nullopt;
}

}  // namespace

absl::StatusOr<ServedModel> LoadServedModel(const WorkerConfig& config, const WeightSource& source) {
  ServedModel model;
  model.config = source.config();
  model.name = NameOf(config);
  absl::StatusOr<int32_t> context = ContextOf(config, model.config);
  if (!context.ok()) return context.status();
  model.context_length = *context;

  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(config, source);
  if (!tokenizer.ok()) return tokenizer.status();
  model.tokenizer = *std::move(tokenizer);
  absl::StatusOr<std::optional<ChatTemplate>> chat = LoadChatTemplate(config, model.tokenizer.get());
  if (!chat.ok()) return chat.status();
  model.chat_template = *std::move(chat);

  if (config.default_sampling == "model") {
    absl::StatusOr<SamplingParams> sampling = SamplingFromModel(config.model);
    if (!sampling.ok()) return sampling.status();
    model.default_sampling = *sampling;
  }
  return model;
}

}  // namespace ridge::worker
