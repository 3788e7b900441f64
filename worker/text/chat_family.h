// The chat templates that are built in. A template is a row here and a function that renders it.
//
// Each function gives exactly what the model's own Jinja template gives, which tests hold it to.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/text/chat_prompt.h"

namespace ridge::worker {

struct ChatFamily {
  const char* name;            // for --chat_template and GetModel
  const char* default_system;  // where the conversation does not begin with a system message; empty: none
  bool has_tools;
  bool has_thinking;
  absl::Span<const char* const> control_tokens;  // that the tokenizer must have
  const char* end_of_turn;                       // the one of them that ends an answer
  // Requires what Conversation promises, and tools and thinking only where the family has them. An error is
  // INVALID_ARGUMENT and begins with the field, from Conversation on.
  absl::Status (*render)(const ChatFamily& family, const Conversation& conversation, PromptWriter* prompt);
};

absl::Span<const ChatFamily> ChatFamilies();

absl::Status RenderChatMl(const ChatFamily& family, const Conversation& conversation, PromptWriter* prompt);
absl::Status RenderQwen25(const ChatFamily& family, const Conversation& conversation, PromptWriter* prompt);
absl::Status RenderQwen3(const ChatFamily& family, const Conversation& conversation, PromptWriter* prompt);
absl::Status RenderQwen3Thinking(const ChatFamily& family, const Conversation& conversation,
                                 PromptWriter* prompt);
absl::Status RenderQwen3Instruct(const ChatFamily& family, const Conversation& conversation,
                                 PromptWriter* prompt);
absl::Status RenderLlama3(const ChatFamily& family, const Conversation& conversation, PromptWriter* prompt);
absl::Status RenderLlama31(const ChatFamily& family, const Conversation& conversation, PromptWriter* prompt);

}  // namespace ridge::worker
