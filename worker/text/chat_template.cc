#include "worker/text/chat_template.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/hash.h"

namespace ridge::worker {
namespace {

constexpr char kChatMl[] = "chatml";

// Known templates, by the SHA-256 of their source.
struct KnownTemplate {
  absl::string_view sha256;
  const char* default_system;
};
constexpr KnownTemplate kKnownTemplates[] = {
    // SmolLM2-Instruct.
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788",
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
};

bool IsRole(absl::string_view role) {
  return role == "system" || role == "user" || role == "assistant" || role == "tool";
}

void AddText(absl::string_view text, std::vector<PromptPart>* parts) {
  if (!parts->empty() && !parts->back().is_control) {
    absl::StrAppend(&parts->back().text, text);
  } else {
    parts->push_back({std::string(text), false});
  }
}

// <|im_start|>role\ncontent<|im_end|>\n
void AddMessage(absl::string_view role, absl::string_view content, std::vector<PromptPart>* parts) {
  parts->push_back({"<|im_start|>", true});
  AddText(absl::StrCat(role, "\n", content), parts);
  parts->push_back({"<|im_end|>", true});
  AddText("\n", parts);
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Recognise(absl::string_view source) {
  Sha256 hash;
  hash.Update(source);
  const std::string digest = hash.HexDigest();
  for (const KnownTemplate& known : kKnownTemplates) {
    if (digest == known.sha256) return ChatTemplate(kChatMl, known.default_system);
  }
  return absl::UnimplementedError(
      absl::StrCat("the model's chat template is not known (SHA-256 ", digest, "); choose a family by name"));
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromName(absl::string_view name) {
  if (name == kChatMl) return ChatTemplate(kChatMl, "");
  return absl::InvalidArgumentError(
      absl::StrCat("chat template \"", name, "\" is not known; there is: ", kChatMl));
}

absl::StatusOr<std::vector<PromptPart>> ChatTemplate::Render(const std::vector<Message>& messages,
                                                             bool add_generation_prompt) const {
  std::vector<PromptPart> parts;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (!IsRole(message.role)) {
      return absl::InvalidArgumentError(absl::StrCat("messages[", i, "].role: \"", message.role,
                                                     "\" is none of system, user, assistant, tool"));
    }
    if (i == 0 && message.role != "system" && !default_system_.empty()) {
      AddMessage("system", default_system_, &parts);
    }
    AddMessage(message.role, message.content, &parts);
  }
  if (add_generation_prompt) {
    parts.push_back({"<|im_start|>", true});
    AddText("assistant\n", &parts);
  }
  return parts;
}

absl::StatusOr<std::vector<TokenId>> EncodePrompt(const Tokenizer& tokenizer,
                                                  const std::vector<PromptPart>& parts, bool parse_special) {
  std::vector<TokenId> ids;
  for (const PromptPart& part : parts) {
    absl::StatusOr<std::vector<TokenId>> encoded =
        tokenizer.Encode(part.text, {.parse_special = part.is_control || parse_special});
    if (!encoded.ok()) return encoded.status();
    if (part.is_control && (encoded->size() != 1 || !tokenizer.IsSpecial(encoded->front()))) {
      return absl::FailedPreconditionError(absl::StrCat("the chat template needs the special token \"",
                                                        part.text, "\", which the tokenizer lacks"));
    }
    ids.insert(ids.end(), encoded->begin(), encoded->end());
  }
  return ids;
}

}  // namespace ridge::worker
