// Chat messages to a prompt, as the model's own template would render them.
//
// Templates are not interpreted: a known one is recognised by its exact source and rendered by code, an
// unknown one is an error, unless a family is chosen by name. Control tokens and contents are kept apart, so
// that a content cannot forge a control token. Immutable; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/text/tokenizer.h"

namespace ridge::worker {

struct Message {
  std::string role;
  std::string content;
};

// A stretch of the prompt.
struct PromptPart {
  std::string text;
  bool is_control;  // a special token; otherwise text, in which special tokens have no meaning
};

class ChatTemplate {
 public:
  // UNIMPLEMENTED for a source that is not known.
  static absl::StatusOr<ChatTemplate> Recognise(absl::string_view source);
  // "chatml"; INVALID_ARGUMENT lists the names.
  static absl::StatusOr<ChatTemplate> FromName(absl::string_view name);

  const std::string& name() const { return name_; }

  // INVALID_ARGUMENT names messages[i].role.
  absl::StatusOr<std::vector<PromptPart>> Render(const std::vector<Message>& messages,
                                                 bool add_generation_prompt) const;

 private:
  ChatTemplate(std::string name, std::string default_system)
      : name_(std::move(name)), default_system_(std::move(default_system)) {}

  std::string name_;
  std::string default_system_;  // put in front where the first message is no system message; empty: none
};

// With parse_special the contents may hold control tokens too. FAILED_PRECONDITION where a control token of
// the template is no special token of the tokenizer.
absl::StatusOr<std::vector<TokenId>> EncodePrompt(const Tokenizer& tokenizer,
                                                  const std::vector<PromptPart>& parts, bool parse_special);

}  // namespace ridge::worker
