// Llama 3, and 3.1 to 3.3 with their system block and tools.
#include "absl/strings/strip.h"
#include "worker/text/chat_family.h"
#include "worker/text/json_reader.h"
#include "worker/text/python_json.h"

namespace ridge::worker {
namespace {

// The date that the templates fall back to where nobody tells them today's. It is always this one here: a
// prompt that changed with the clock would make answers depend on more than the request.
constexpr char kDate[] = "26 Jul 2024";

// Python's str.strip(): Unicode's white space and the four separators of ASCII.
absl::string_view Strip(absl::string_view text) {
  constexpr absl::string_view kSpaces[] = {
      "\t",           "\n",           "\v",           "\f",           "\r",
      "\x1C",         "\x1D",         "\x1E",         "\x1F",         " ",
      "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
      "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
      "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
      "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
  for (bool again = true; again;) {
    again = false;
    for (const absl::string_view space : kSpaces) {
      while (absl::ConsumePrefix(&text, space) || absl::ConsumeSuffix(&text, space)) again = true;
    }
  }
  return text;
}

void Open(absl::string_view role, PromptWriter* prompt) {
  prompt->Control("<|start_header_id|>");
  prompt->Text(role);
  prompt->Control("<|end_header_id|>");
  prompt->Text("\n\n");
}

void AddMessage(absl::string_view role, absl::string_view content, PromptWriter* prompt) {
  Open(role, prompt);
  prompt->Text(Strip(content));
  prompt->Control("<|eot_id|>");
}

// The tools, in front of the user's first message.
absl::Status AddTools(const Conversation& conversation, size_t first, PromptWriter* prompt) {
  if (first == conversation.messages.size()) {
    return absl::InvalidArgumentError(
        "tools: this model's template puts them into the first message of the "
        "user, and there is none");
  }
  Open("user", prompt);
  prompt->Text(
      "Given the following functions, please respond with a JSON for a function call with its proper "
      "arguments that best answers the given prompt.\n\n"
      "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its "
      "value}.Do not use variables.\n\n");
  for (size_t i = 0; i < conversation.tools.size(); ++i) {
    absl::StatusOr<std::string> tool =
        PythonJsonObject(conversation.tools[i], absl::StrCat("tools[", i, "]"), 4);
    if (!tool.ok()) return tool.status();
    prompt->Text(*tool, "\n\n");
  }
  prompt->Text(Strip(conversation.messages[first].content));
  prompt->Control("<|eot_id|>");
  return absl::OkStatus();
}

absl::Status AddToolCall(const Conversation& conversation, size_t index, PromptWriter* prompt) {
  const std::vector<ToolCall>& calls = conversation.messages[index].tool_calls;
  const std::string field = absl::StrCat("messages[", index, "].tool_calls");
  if (calls.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": this model's template takes one call a message"));
  }
  absl::StatusOr<std::string> arguments =
      PythonJsonObject(calls[0].arguments, absl::StrCat(field, "[0].arguments"));
  if (!arguments.ok()) return arguments.status();
  Open("assistant", prompt);
  prompt->Text("{\"name\": \"", calls[0].name, "\", \"parameters\": ", *arguments, "}");
  prompt->Control("<|eot_id|>");
  return absl::OkStatus();
}

}  // namespace

absl::Status RenderLlama3(const ChatFamily& /*family*/, const Conversation& conversation,
                          PromptWriter* prompt) {
  prompt->Control("<|begin_of_text|>");
  for (const Message& message : conversation.messages) AddMessage(message.role, message.content, prompt);
  if (conversation.add_generation_prompt) Open("assistant", prompt);
  return absl::OkStatus();
}

absl::Status RenderLlama31(const ChatFamily& /*family*/, const Conversation& conversation,
                           PromptWriter* prompt) {
  const std::vector<Message>& messages = conversation.messages;
  size_t next = messages[0].role == "system" ? 1 : 0;
  prompt->Control("<|begin_of_text|>");
  Open("system", prompt);
  prompt->Text(conversation.tools.empty() ? "" : "Environment: ipython\n",
               "Cutting Knowledge Date: December 2023\nToday Date: ", kDate, "\n\n",
               next == 1 ? Strip(messages[0].content) : "");
  prompt->Control("<|eot_id|>");
  if (!conversation.tools.empty()) {
    if (absl::Status status = AddTools(conversation, next, prompt); !status.ok()) return status;
    ++next;
  }
  for (; next < messages.size(); ++next) {
    const Message& message = messages[next];
    if (!message.tool_calls.empty()) {
      if (absl::Status status = AddToolCall(conversation, next, prompt); !status.ok()) return status;
    } else if (message.role == "tool") {
      Open("ipython", prompt);
      prompt->Text(JsonQuote(message.content));  // the template quotes any text here
      prompt->Control("<|eot_id|>");
    } else {
      AddMessage(message.role, message.content, prompt);
    }
  }
  if (conversation.add_generation_prompt) Open("assistant", prompt);
  return absl::OkStatus();
}

}  // namespace ridge::worker
