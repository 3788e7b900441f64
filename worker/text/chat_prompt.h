// The pieces that a conversation is given in and a prompt is made of.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ridge::worker {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

struct Message {
  std::string role;  // system, user, assistant or tool
  std::string content;
  std::optional<std::string> reasoning;  // what an assistant thought before its content
  std::vector<ToolCall> tool_calls;      // of an assistant
};

struct Conversation {
  std::vector<Message> messages;   // at least one
  std::vector<std::string> tools;  // a JSON object each
  bool add_generation_prompt = true;
  std::optional<bool> enable_thinking;  // absent: as the model does by itself
};

// A stretch of the prompt.
struct PromptPart {
  std::string text;
  bool is_control;  // a special token; otherwise text, in which special tokens have no meaning
};

// Collects parts; texts that touch are one part, so that they are tokenised together.
class PromptWriter {
 public:
  void Control(absl::string_view token) { parts_.push_back({std::string(token), true}); }
  template <typename... Texts>
  void Text(const Texts&... texts) {
    if (parts_.empty() || parts_.back().is_control) parts_.push_back({"", false});
    absl::StrAppend(&parts_.back().text, texts...);
  }
  std::vector<PromptPart> Take() { return std::move(parts_); }

 private:
  std::vector<PromptPart> parts_;
};

}  // namespace ridge::worker
