#include "worker/text/chat_template.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/hash.h"
#include "common/status.h"

namespace ridge::worker {
namespace {

// Known templates, by the SHA-256 of their source as CanonicalSource has it.
struct KnownTemplate {
  absl::string_view sha256;
  absl::string_view family;
};
constexpr KnownTemplate kKnownTemplates[] = {
    // SmolLM2-Instruct.
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", "smollm2"},
    // Qwen1.5-Chat, Qwen2-Instruct.
    {"793202280c0910ab26bc6eb57c8212c2417324c6d8c4efd0d10d59092ab3e3eb", "qwen2"},
    // Qwen2.5-Instruct.
    {"a18cc698dd45623eb707279d08e66f7bb8d76afc89ead84016b88487b395b5cc", "qwen2.5"},
    // Qwen2.5 and Qwen2.5-Coder without Instruct.
    {"7d6302983e64f35c4ad9459413ee827d5dcfa23ba5373f58cde030c9f724f7e8", "qwen2.5-base"},
    // Qwen2.5-Math, Qwen2.5-Math-Instruct.
    {"9d6b98bc5e299deed4ea4340cf2336137a3a96d4693d8e8d94b466d9cda1a6d2", "qwen2.5-math"},
    // Qwen3, in two revisions.
    {"2df317a15cbc983d9602cc391d33be17237d47ec7eb11ead80fae277143958aa", "qwen3"},
    {"edcd73b0e30a780c1d6f3e060c07396def3c3fa55a2c55197b10f99d1dde83e1", "qwen3"},
    // Qwen3-Thinking-2507.
    {"72e7e9715c1c73c33e15cdf3c5d37cc0efefc25eb6299fc6a6fa516237913bf8", "qwen3-thinking"},
    // Qwen3-Instruct-2507.
    {"aa39eed4cbfdd57aeaab518e83d06945f00df6afefba6eb985b6b85060cade95", "qwen3-instruct"},
    // Llama-3-Instruct.
    {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", "llama3"},
    // Llama-3.1-Instruct, Llama-3.3-Instruct.
    {"99799a835a31e1d33c4a9c7ee8a0de3923b291a95155ed6dc8efcbd0fe1d0238", "llama3.1"},
    // Llama-3.2-Instruct.
    {"0cac23ffd2b33ff7b039e17ee143a080053318146fdc788f1d49ed4745aa8683", "llama3.1"},
};

// Published copies of a template differ in how a line break in a string is written, and at the end.
std::string CanonicalSource(absl::string_view source) {
  return absl::StrReplaceAll(absl::StripTrailingAsciiWhitespace(source), {{"\\n", "\n"}, {"\r\n", "\n"}});
}

const ChatFamily* FindFamily(absl::string_view name) {
  for (const ChatFamily& family : ChatFamilies()) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

bool IsRole(absl::string_view role) {
  return role == "system" || role == "user" || role == "assistant" || role == "tool";
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Recognise(absl::string_view source) {
  Sha256 hash;
  hash.Update(CanonicalSource(source));
  const std::string digest = hash.HexDigest();
  for (const KnownTemplate& known : kKnownTemplates) {
    if (digest == known.sha256) return ChatTemplate(FindFamily(known.family));
  }
  return absl::UnimplementedError(
      absl::StrCat("the model's chat template is not known (SHA-256 ", digest, "); choose a family by name"));
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromName(absl::string_view name) {
  if (const ChatFamily* family = FindFamily(name)) return ChatTemplate(family);
  return absl::InvalidArgumentError(
      absl::StrCat("chat template \"", name, "\" is not known; there is: ", Names()));
}

std::string ChatTemplate::Names() {
  const auto append_name = [](std::string* out, const ChatFamily& family) { out->append(family.name); };
  return absl::StrJoin(ChatFamilies(), ", ", append_name);
}

absl::Status ChatTemplate::CheckTokens(const Tokenizer& tokenizer) const {
  for (const char* token : family_->control_tokens) {
    if (tokenizer.FindSpecial(token) >= 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the chat template ", name(), " needs the special token \"", token, "\", which the tokenizer lacks"));
  }
  return absl::OkStatus();
}

absl::Status ChatTemplate::Check(const Conversation& conversation) const {
  const std::vector<Message>& messages = conversation.messages;
  if (messages.empty()) return absl::InvalidArgumentError("messages: empty");
  if (!conversation.tools.empty() && !has_tools()) {
    return absl::InvalidArgumentError(absl::StrCat("tools: the chat template ", name(), " has none"));
  }
  if (conversation.enable_thinking.value_or(false) && !has_thinking()) {
    return absl::InvalidArgumentError(
        absl::StrCat("enable_thinking: the chat template ", name(), " has no thinking"));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto error = [&](absl::string_view field, absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("messages[", i, "].", field, ": ", what));
    };
    const Message& message = messages[i];
    if (!IsRole(message.role)) {
      return error("role", absl::StrCat(Quoted(message.role), " is none of system, user, assistant, tool"));
    }
    if (!message.tool_calls.empty() && message.role != "assistant") {
      return error("tool_calls", "only an assistant calls tools");
    }
    if (!message.tool_calls.empty() && !has_tools()) {
      return error("tool_calls", absl::StrCat("the chat template ", name(), " has no tools"));
    }
    if (message.reasoning.has_value() && (message.role != "assistant" || !has_thinking())) {
      return error("reasoning", has_thinking()
                                    ? "only an assistant thinks"
                                    : absl::StrCat("the chat template ", name(), " has no thinking"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PromptPart>> ChatTemplate::Render(const Conversation& conversation) const {
  if (absl::Status status = Check(conversation); !status.ok()) return status;
  PromptWriter prompt;
  if (absl::Status status = family_->render(*family_, conversation, &prompt); !status.ok()) return status;
  return prompt.Take();
}

absl::StatusOr<std::vector<TokenId>> EncodePrompt(const Tokenizer& tokenizer,
                                                  const std::vector<PromptPart>& parts, bool parse_special) {
  std::vector<TokenId> ids;
  for (const PromptPart& part : parts) {
    if (part.is_control) {
      const TokenId id = tokenizer.FindSpecial(part.text);
      if (id < 0) {
        return absl::FailedPreconditionError(absl::StrCat("the chat template needs the special token \"",
                                                          part.text, "\", which the tokenizer lacks"));
      }
      ids.push_back(id);
      continue;
    }
    absl::StatusOr<std::vector<TokenId>> encoded =
        tokenizer.Encode(part.text, {.parse_special = parse_special});
    if (!encoded.ok()) return encoded.status();
    ids.insert(ids.end(), encoded->begin(), encoded->end());
  }
  return ids;
}

}  // namespace ridge::worker
