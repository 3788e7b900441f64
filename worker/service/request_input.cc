#include "worker/service/request_input.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace ridge::worker {
namespace {

// An option that asks for something which this kind of input does not have. Asking for it not to happen is
// harmless.
absl::Status CheckMeaningless(absl::string_view field, std::optional<bool> value,
                              absl::string_view applies_to) {
  if (!value.value_or(false)) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("applies to ", applies_to, " only"));
}

Conversation ConversationOf(const v1::Chat& chat) {
  Conversation conversation;
  for (const v1::ChatMessage& message : chat.messages()) {
    Message& added = conversation.messages.emplace_back();
    added.role = message.role();
    added.content = message.content();
    if (message.has_reasoning()) added.reasoning = message.reasoning();
    for (const v1::ToolCall& call : message.tool_calls()) {
      added.tool_calls.push_back({call.name(), call.arguments()});
    }
  }
  conversation.tools.assign(chat.tools().begin(), chat.tools().end());
  if (chat.has_enable_thinking()) conversation.enable_thinking = chat.enable_thinking();
  return conversation;
}

absl::Status CheckBytes(absl::string_view field, int64_t bytes, const InputOptions& options) {
  if (bytes <= options.max_bytes) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(bytes, " bytes of text are more than ", options.max_bytes_of,
                                          " can hold, ", options.max_bytes));
}

}  // namespace

absl::Status CheckModelName(const std::string& name, const ServedModel& model) {
  if (name.empty() || name == model.name) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("model: ", Quoted(name), " is not served here; there is ", Quoted(model.name)));
}

absl::Status CheckTokenIds(absl::string_view field, const google::protobuf::RepeatedField<int32_t>& ids,
                           int32_t vocab_size) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return InvalidField(absl::StrCat(field, "[", i, "]"),
                          absl::StrCat(ids[i], " is outside the vocabulary of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenId>> EncodeText(const std::string& prompt, const InputOptions& options,
                                                const ServedModel& model) {
  if (model.tokenizer == nullptr) {
    return InvalidField("prompt", "the model has no tokenizer; send prompt_ids");
  }
  absl::Status status = CheckMeaningless("add_generation_prompt", options.add_generation_prompt, "chat");
  status.Update(CheckBytes("prompt", static_cast<int64_t>(prompt.size()), options));
  if (!status.ok()) return status;
  absl::StatusOr<std::vector<TokenId>> ids =
      model.tokenizer->Encode(prompt, {.parse_special = options.parse_special_tokens.value_or(true),
                                       .add_special_tokens = options.add_special_tokens.value_or(true)});
  if (!ids.ok()) return InvalidField("prompt", ids.status().message());
  if (ids->empty()) return InvalidField("prompt", prompt.empty() ? "empty" : "gives no tokens");
  return ids;
}

absl::StatusOr<std::vector<TokenId>> EncodeIds(const v1::TokenIds& prompt_ids, const InputOptions& options,
                                               const ServedModel& model) {
  if (prompt_ids.ids().empty()) return InvalidField("prompt_ids", "empty");
  absl::Status status = CheckTokenIds("prompt_ids.ids", prompt_ids.ids(), model.config.vocab_size);
  status.Update(CheckMeaningless("add_special_tokens", options.add_special_tokens, "prompt"));
  status.Update(CheckMeaningless("add_generation_prompt", options.add_generation_prompt, "chat"));
  status.Update(CheckMeaningless("parse_special_tokens", options.parse_special_tokens, "prompt and chat"));
  if (!status.ok()) return status;
  return std::vector<TokenId>(prompt_ids.ids().begin(), prompt_ids.ids().end());
}

absl::StatusOr<std::vector<TokenId>> EncodeChat(const v1::Chat& chat, const InputOptions& options,
                                                const ServedModel& model) {
  if (model.tokenizer == nullptr) {
    return InvalidField("chat", "the model has no tokenizer; send prompt_ids");
  }
  if (!model.chat_template.has_value()) {
    return InvalidField("chat", model.why_no_chat.empty()
                                    ? "the model has no chat template; send prompt"
                                    : absl::StrCat(model.why_no_chat, "; or send prompt"));
  }
  if (chat.messages().empty()) return InvalidField("chat.messages", "empty");
  absl::Status status = CheckMeaningless("add_special_tokens", options.add_special_tokens, "prompt");
  if (!status.ok()) return status;

  Conversation conversation = ConversationOf(chat);
  conversation.add_generation_prompt = options.add_generation_prompt.value_or(true);
  absl::StatusOr<std::vector<PromptPart>> parts = model.chat_template->Render(conversation);
  // The template names the field, from messages[i] on.
  if (!parts.ok()) return absl::InvalidArgumentError(absl::StrCat("chat.", parts.status().message()));
  int64_t bytes = 0;
  for (const PromptPart& part : *parts) bytes += static_cast<int64_t>(part.text.size());
  if (status = CheckBytes("chat", bytes, options); !status.ok()) return status;
  absl::StatusOr<std::vector<TokenId>> ids =
      EncodePrompt(*model.tokenizer, *parts, options.parse_special_tokens.value_or(false));
  if (!ids.ok()) return InvalidField("chat", ids.status().message());
  if (ids->empty()) return InvalidField("chat", "gives no tokens");
  return ids;
}

}  // namespace ridge::worker
