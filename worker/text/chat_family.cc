#include "worker/text/chat_family.h"

namespace ridge::worker {
namespace {

constexpr const char* kChatMlTokens[] = {"<|im_start|>", "<|im_end|>"};
constexpr const char* kLlama3Tokens[] = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                                         "<|eot_id|>"};

constexpr ChatFamily kFamilies[] = {
    {.name = "chatml",
     .default_system = "",
     .has_tools = false,
     .has_thinking = false,
     .control_tokens = kChatMlTokens,
     .end_of_turn = "<|im_end|>",
     .render = RenderChatMl},
    {.name = "smollm2",
     .default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
     .has_tools = false,
     .has_thinking = false,
     .control_tokens = kChatMlTokens,
     .end_of_turn = "<|im_end|>",
     .render = RenderChatMl},
    {.name = "qwen2",
     .default_system = "You are a helpful assistant.",
     .has_tools = false,
     .has_thinking = false,
     .control_tokens = kChatMlTokens,
     .end_of_turn = "<|im_end|>",
     .render = RenderChatMl},
    {.name = "qwen2.5",
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
     .has_tools = true,
     .has_thinking = false,
     .control_tokens = kChatMlTokens,
     .end_of_turn = "<|im_end|>",
     .render = RenderQwen25},
    {.name = "qwen3",
     .default_system = "",
     .has_tools = true,
     .has_thinking = true,
     .control_tokens = kChatMlTokens,
     .end_of_turn = "<|im_end|>",
     .render = RenderQwen3},
    {.name = "llama3",
     .default_system = "",
     .has_tools = false,
     .has_thinking = false,
     .control_tokens = kLlama3Tokens,
     .end_of_turn = "<|eot_id|>",
     .render = RenderLlama3},
    {.name = "llama3.1",
     .default_system = "",
     .has_tools = true,
     .has_thinking = false,
     .control_tokens = kLlama3Tokens,
     .end_of_turn = "<|eot_id|>",
     .render = RenderLlama31},
};

}  // namespace

absl::Span<const ChatFamily> ChatFamilies() {
  return kFamilies;
}

}  // namespace ridge::worker
