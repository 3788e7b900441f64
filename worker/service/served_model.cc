#include "worker/service/served_model.h"

#include <algorithm>
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
#include "worker/text/hf_tokenizer.h"

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

// NOT_FOUND where the model has none.
absl::StatusOr<TokenizerSpec> ReadTokenizer(const WorkerConfig& config, const WeightSource& source) {
  if (const auto* gguf = dynamic_cast<const GgufSource*>(&source)) return TokenizerSpecFromGguf(gguf->file());
  if (absl::StartsWith(config.model, "synthetic:")) {
    return absl::NotFoundError(absl::StrCat(config.model, ": no tokenizer"));
  }
  return TokenizerSpecFromHfDirectory(config.model);
}

// nullptr where the model has none.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const WorkerConfig& config,
                                                         const WeightSource& source) {
  absl::StatusOr<TokenizerSpec> spec = ReadTokenizer(config, source);
  if (absl::IsNotFound(spec.status())) {
    LogWarning("{}; requests give prompt_ids and get no text", std::string(spec.status().message()));
    return nullptr;
  }
  if (!spec.ok()) return InvalidField("--model", spec.status().message());
  const size_t vocab_size = source.config().vocab_size;
  if (spec->tokens.size() > vocab_size) {
    return InvalidField("--model", absl::StrCat(config.model, ": the tokenizer has ", spec->tokens.size(),
                                                " tokens, the model ", vocab_size));
  }
  // Output matrices are padded to round sizes; such ids can be drawn, and have no text.
  spec->tokens.resize(vocab_size, {.bytes = "", .kind = TokenKind::kUnused});
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) {
    return InvalidField("--model", absl::StrCat(config.model, ": tokenizer: ", tokenizer.status().message()));
  }
  return tokenizer;
}

int64_t LongestTokenBytes(const Tokenizer* tokenizer) {
  size_t longest = 0;
  const int32_t tokens = tokenizer == nullptr ? 0 : tokenizer->vocab_size();
  for (TokenId id = 0; id < tokens; ++id) longest = std::max(longest, tokenizer->TokenBytes(id).size());
  return static_cast<int64_t>(longest);
}

// Nothing where the model has none that can be used; `why_none` then says what is wrong with the one that it
// has.
absl::StatusOr<std::optional<ChatTemplate>> LoadChatTemplate(const WorkerConfig& config,
                                                             const Tokenizer* tokenizer,
                                                             std::string* why_none) {
  const bool is_named = !config.chat_template.empty();
  if (is_named && tokenizer == nullptr) return InvalidField("--chat_template", "the model has no tokenizer");
  if (!is_named && (tokenizer == nullptr || tokenizer->chat_template().empty())) return std::nullopt;
  absl::StatusOr<ChatTemplate> chat = is_named ? ChatTemplate::FromName(config.chat_template)
                                               : ChatTemplate::Recognise(tokenizer->chat_template());
  absl::Status status = chat.status();
  if (status.ok()) status = chat->CheckTokens(*tokenizer);
  if (status.ok()) return *std::move(chat);
  if (is_named) return InvalidField("--chat_template", status.message());
  *why_none = std::string(status.message());
  LogWarning("chat is not available: {} (--chat_template)", *why_none);
  return std::nullopt;
}

// What ends a generation where a model has a special token of this name. A GGUF file tells one of them, or
// two.
constexpr const char* kEndsOfGguf[] = {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>",
                                       "<|endoftext|>"};

// Models' configurations often name one end of several: the tokenizer knows its own, and the chat template
// the one that ends an answer.
void AddEnds(const Tokenizer& tokenizer, const std::optional<ChatTemplate>& chat, bool is_gguf,
             std::vector<TokenId>* ends) {
  const auto add = [&](TokenId id) {
    if (id >= 0 && std::find(ends->begin(), ends->end(), id) == ends->end()) ends->push_back(id);
  };
  add(tokenizer.eos_id());
  if (chat.has_value()) add(tokenizer.FindSpecial(chat->end_of_turn()));
  if (!is_gguf) return;
  for (const char* name : kEndsOfGguf) add(tokenizer.FindSpecial(name));
}

}  // namespace

absl::Status CheckModelPath(const WorkerConfig& config) {
  if (absl::StartsWith(config.model, "synthetic:")) return absl::OkStatus();
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(config.model, error);
  const bool wrong_kind = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
                          !std::filesystem::is_directory(status);
  if (wrong_kind) return InvalidField("--model", absl::StrCat(config.model, ": not a file or a directory"));
  return absl::OkStatus();
}

int64_t MostPromptBytes(const ServedModel& model) {
  // Normalisation (NFC) makes a text up to three times shorter.
  constexpr int64_t kMostShrinking = 3;
  if (model.longest_token_bytes == 0) return INT64_MAX;
  return model.context_length * model.longest_token_bytes * kMostShrinking;
}

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
  model.longest_token_bytes = LongestTokenBytes(model.tokenizer.get());
  absl::StatusOr<std::optional<ChatTemplate>> chat =
      LoadChatTemplate(config, model.tokenizer.get(), &model.why_no_chat);
  if (!chat.ok()) return chat.status();
  model.chat_template = *std::move(chat);
  if (model.tokenizer != nullptr) {
    model.token_index = std::make_unique<TokenIndex>(model.tokenizer.get());
    const bool is_gguf = dynamic_cast<const GgufSource*>(&source) != nullptr;
    AddEnds(*model.tokenizer, model.chat_template, is_gguf, &model.config.eos_token_ids);
  }

  if (config.default_sampling == "model") {
    absl::StatusOr<SamplingParams> sampling = SamplingFromModel(config.model);
    if (!sampling.ok()) return sampling.status();
    model.default_sampling = *sampling;
  }
  return model;
}

}  // namespace ridge::worker
