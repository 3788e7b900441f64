// A conversation with one tool and one call, both JSON from outside: whatever they are, control tokens come
// from the template.
#include "common/check.h"
#include "tests/fuzz/fuzz_file.h"
#include "worker/text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string json(reinterpret_cast<const char*>(data), size);
  ridge::worker::Conversation conversation;
  conversation.messages = {
      {.role = "user", .content = json, .reasoning = {}, .tool_calls = {}},
      {.role = "assistant", .content = "", .reasoning = {}, .tool_calls = {{"f", json}}}};
  conversation.tools = {json};
  for (const char* family : {"qwen2.5", "qwen3", "llama3.1"}) {
    const auto parts = ridge::worker::ChatTemplate::FromName(family)->Render(conversation);
    if (!parts.ok()) continue;
    for (const ridge::worker::PromptPart& part : *parts) {
      RIDGE_CHECK(!part.is_control ||
                  (part.text.starts_with("<|") && part.text.ends_with("|>") && part.text.size() < 24));
    }
  }
  return 0;
}
