// ChatML as SmolLM2 and Qwen2 have it: every message in the same frame, no tools.
#include "worker/text/chat_family.h"

namespace ridge::worker {
namespace {

void AddMessage(absl::string_view role, absl::string_view content, PromptWriter* prompt) {
  prompt->Control("<|im_start|>");
  prompt->Text(role, "\n", content);
  prompt->Control("<|im_end|>");
  prompt->Text("\n");
}

}  // namespace

absl::Status RenderChatMl(const ChatFamily& family, const Conversation& conversation, PromptWriter* prompt) {
  const absl::string_view default_system = family.default_system;
  if (conversation.messages[0].role != "system" && !default_system.empty()) {
    AddMessage("system", default_system, prompt);
  }
  for (const Message& message : conversation.messages) AddMessage(message.role, message.content, prompt);
  if (conversation.add_generation_prompt) {
    prompt->Control("<|im_start|>");
    prompt->Text("assistant\n");
  }
  return absl::OkStatus();
}

}  // namespace ridge::worker
