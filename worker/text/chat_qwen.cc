// ChatML as Qwen2.5 and Qwen3 have it: tools in the system message, calls and answers in tags, and for Qwen3
// what the assistant thought, except in the model that does not think.
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "worker/text/chat_family.h"
#include "worker/text/python_json.h"

namespace ridge::worker {
namespace {

constexpr char kToolsHead[] =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr char kToolsTail[] =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";

void Open(absl::string_view role, PromptWriter* prompt) {
  prompt->Control("<|im_start|>");
  prompt->Text(role);
}

void Close(PromptWriter* prompt) {
  prompt->Control("<|im_end|>");
  prompt->Text("\n");
}

absl::Status AddTools(const Conversation& conversation, PromptWriter* prompt) {
  prompt->Text(kToolsHead);
  for (size_t i = 0; i < conversation.tools.size(); ++i) {
    absl::StatusOr<std::string> tool =
        PythonJsonObject(conversation.tools[i], absl::StrCat("tools[", i, "]"));
    if (!tool.ok()) return tool.status();
    prompt->Text("\n", *tool);
  }
  prompt->Text(kToolsTail);
  return absl::OkStatus();
}

// The calls of message `index`; the first one follows a line break only where `after_text`.
absl::Status AddToolCalls(const Conversation& conversation, size_t index, bool after_text,
                          PromptWriter* prompt) {
  const std::vector<ToolCall>& calls = conversation.messages[index].tool_calls;
  for (size_t i = 0; i < calls.size(); ++i) {
    absl::StatusOr<std::string> arguments = PythonJsonObject(
        calls[i].arguments, absl::StrCat("messages[", index, "].tool_calls[", i, "].arguments"));
    if (!arguments.ok()) return arguments.status();
    prompt->Text(i > 0 || after_text ? "\n" : "", "<tool_call>\n{\"name\": \"", calls[i].name,
                 "\", \"arguments\": ", *arguments, "}\n</tool_call>");
  }
  return absl::OkStatus();
}

// Answers of tools that follow each other share one message of the user.
void AddToolAnswer(const std::vector<Message>& messages, size_t index, PromptWriter* prompt) {
  if (index == 0 || messages[index - 1].role != "tool") Open("user", prompt);
  prompt->Text("\n<tool_response>\n", messages[index].content, "\n</tool_response>");
  if (index + 1 == messages.size() || messages[index + 1].role != "tool") Close(prompt);
}

void AddPlain(const Message& message, PromptWriter* prompt) {
  Open(message.role, prompt);
  prompt->Text("\n", message.content);
  Close(prompt);
}

absl::string_view StripLines(absl::string_view text, bool front, bool back) {
  while (front && absl::ConsumePrefix(&text, "\n")) {
  }
  while (back && absl::ConsumeSuffix(&text, "\n")) {
  }
  return text;
}

// What an assistant's message holds: in fields of its own, or in one text with tags.
struct Thought {
  absl::string_view reasoning;
  absl::string_view content;
};

Thought SplitThought(const Message& message) {
  constexpr absl::string_view kOpen = "<think>", kClose = "</think>";
  const absl::string_view text = message.content;
  if (message.reasoning.has_value()) return {*message.reasoning, text};
  const size_t first = text.find(kClose), last = text.rfind(kClose);
  if (first == text.npos) return {"", text};
  absl::string_view reasoning = StripLines(text.substr(0, first), false, true);
  const size_t open = reasoning.rfind(kOpen);
  if (open != reasoning.npos) reasoning.remove_prefix(open + kOpen.size());
  return {StripLines(reasoning, true, false), StripLines(text.substr(last + kClose.size()), true, false)};
}

// The user's last message that is no answer of a tool: what was thought before it is left out.
size_t LastQuery(const std::vector<Message>& messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    const absl::string_view content = messages[i].content;
    if (messages[i].role == "user" &&
        !(absl::StartsWith(content, "<tool_response>") && absl::EndsWith(content, "</tool_response>"))) {
      return i;
    }
  }
  return messages.size() - 1;
}

absl::Status AddThinkingAssistant(const Conversation& conversation, size_t index, size_t last_query,
                                  PromptWriter* prompt) {
  const Thought thought = SplitThought(conversation.messages[index]);
  const bool is_last = index + 1 == conversation.messages.size();
  Open("assistant", prompt);
  if (index > last_query && (is_last || !thought.reasoning.empty())) {
    prompt->Text("\n<think>\n", StripLines(thought.reasoning, true, true), "\n</think>\n\n",
                 StripLines(thought.content, true, false));
  } else {
    prompt->Text("\n", thought.content);
  }
  absl::Status status = AddToolCalls(conversation, index, !thought.content.empty(), prompt);
  Close(prompt);
  return status;
}

absl::Status AddAssistant(const Conversation& conversation, size_t index, PromptWriter* prompt) {
  const std::string& content = conversation.messages[index].content;
  Open("assistant", prompt);
  prompt->Text("\n", content);
  absl::Status status = AddToolCalls(conversation, index, !content.empty(), prompt);
  Close(prompt);
  return status;
}

// All but the opening of the answer.
absl::Status AddConversation(const Conversation& conversation, bool has_thoughts, PromptWriter* prompt) {
  const std::vector<Message>& messages = conversation.messages;
  const bool has_system = messages[0].role == "system";
  if (has_system || !conversation.tools.empty()) {
    Open("system", prompt);
    prompt->Text("\n", has_system ? absl::string_view(messages[0].content) : "");
    if (!conversation.tools.empty()) {
      prompt->Text(has_system ? "\n\n" : "");
      if (absl::Status status = AddTools(conversation, prompt); !status.ok()) return status;
    }
    Close(prompt);
  }
  const size_t last_query = LastQuery(messages);
  for (size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
    absl::Status status;
    if (messages[i].role == "tool") {
      AddToolAnswer(messages, i, prompt);
    } else if (messages[i].role != "assistant") {
      AddPlain(messages[i], prompt);
    } else if (has_thoughts) {
      status = AddThinkingAssistant(conversation, i, last_query, prompt);
    } else {
      status = AddAssistant(conversation, i, prompt);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void OpenAnswer(const Conversation& conversation, absl::string_view begin, PromptWriter* prompt) {
  if (!conversation.add_generation_prompt) return;
  Open("assistant", prompt);
  prompt->Text("\n", begin);
}

}  // namespace

absl::Status RenderQwen25(const ChatFamily& family, const Conversation& conversation, PromptWriter* prompt) {
  const std::vector<Message>& messages = conversation.messages;
  const bool has_system = messages[0].role == "system";
  Open("system", prompt);
  prompt->Text("\n", has_system ? absl::string_view(messages[0].content) : family.default_system);
  if (!conversation.tools.empty()) {
    prompt->Text("\n\n");
    if (absl::Status status = AddTools(conversation, prompt); !status.ok()) return status;
  }
  Close(prompt);
  for (size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
    if (messages[i].role == "tool") {
      AddToolAnswer(messages, i, prompt);
    } else if (messages[i].tool_calls.empty()) {
      AddPlain(messages[i], prompt);
    } else {
      Open("assistant", prompt);
      if (!messages[i].content.empty()) prompt->Text("\n", messages[i].content);
      absl::Status status = AddToolCalls(conversation, i, true, prompt);
      if (!status.ok()) return status;
      Close(prompt);
    }
  }
  OpenAnswer(conversation, "", prompt);
  return absl::OkStatus();
}

absl::Status RenderQwen3(const ChatFamily& /*family*/, const Conversation& conversation,
                         PromptWriter* prompt) {
  absl::Status status = AddConversation(conversation, true, prompt);
  OpenAnswer(conversation, conversation.enable_thinking.value_or(true) ? "" : "<think>\n\n</think>\n\n",
             prompt);
  return status;
}

absl::Status RenderQwen3Thinking(const ChatFamily& family, const Conversation& conversation,
                                 PromptWriter* prompt) {
  if (!conversation.enable_thinking.value_or(true)) {
    return absl::InvalidArgumentError(
        absl::StrCat("enable_thinking: the chat template ", family.name, " always thinks"));
  }
  absl::Status status = AddConversation(conversation, true, prompt);
  OpenAnswer(conversation, "<think>\n", prompt);
  return status;
}

absl::Status RenderQwen3Instruct(const ChatFamily& /*family*/, const Conversation& conversation,
                                 PromptWriter* prompt) {
  absl::Status status = AddConversation(conversation, false, prompt);
  OpenAnswer(conversation, "", prompt);
  return status;
}

}  // namespace ridge::worker
