// Chat messages to a prompt, as the model's own template would render them.
//
// Templates are not interpreted: a known one is recognised by its source and rendered by code, an unknown one
// is an error, unless a family is chosen by name. Control tokens and contents are kept apart, so that a
// content cannot forge a control token. Immutable; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/text/chat_family.h"
#include "worker/text/chat_prompt.h"
#include "worker/text/tokenizer.h"

namespace ridge::worker {

class ChatTemplate {
 public:
  // By the SHA-256 of the source, in which "\n" may be written as a line break and white space may end it.
  // UNIMPLEMENTED for a source that is not known.
  static absl::StatusOr<ChatTemplate> Recognise(absl::string_view source);
  // INVALID_ARGUMENT lists the names.
  static absl::StatusOr<ChatTemplate> FromName(absl::string_view name);
  // "chatml, smollm2, ..."
  static std::string Names();

  absl::string_view name() const { return family_->name; }
  bool has_tools() const { return family_->has_tools; }
  bool has_thinking() const { return family_->has_thinking; }
  absl::string_view end_of_turn() const { return family_->end_of_turn; }

  // FAILED_PRECONDITION where a control token of the template is no special token of the tokenizer.
  absl::Status CheckTokens(const Tokenizer& tokenizer) const;

  // INVALID_ARGUMENT begins with the field: messages[i].role, tools[i], enable_thinking...
  absl::StatusOr<std::vector<PromptPart>> Render(const Conversation& conversation) const;

 private:
  explicit ChatTemplate(const ChatFamily* family) : family_(family) {}
  absl::Status Check(const Conversation& conversation) const;

  const ChatFamily* family_;
};

// With parse_special the contents may hold control tokens too. FAILED_PRECONDITION where a control token of
// the template is no special token of the tokenizer.
absl::StatusOr<std::vector<TokenId>> EncodePrompt(const Tokenizer& tokenizer,
                                                  const std::vector<PromptPart>& parts, bool parse_special);

}  // namespace ridge::worker
