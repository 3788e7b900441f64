// The whole worker on a Hugging Face directory: a tiny model's recorded weights and a tokenizer of 512
// tokens.
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/worker/service/small_model.h"
#include "worker/service/worker.h"

namespace ridge::worker {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr TokenId kStart = 510, kEnd = 511;

// The printable stand-in of a byte.
std::string StandIn(int byte) {
  const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  int code = byte;
  if (!printable) code = 256 + (byte <= 32 ? byte : byte <= 160 ? byte - 127 + 33 : 67);
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// The single bytes, pairs of letters, and ChatML's two control tokens.
ordered_json TinyTokenizer() {
  ordered_json vocabulary, merges = ordered_json::array(), added = ordered_json::array();
  for (int byte = 0; byte < 256; ++byte) vocabulary[StandIn(byte)] = byte;
  for (int id = 256; id < kStart; ++id) {
    const std::string left(1, static_cast<char>('a' + (id - 256) / 26)),
        right(1, static_cast<char>('a' + (id - 256) % 26));
    vocabulary[left + right] = id;
    merges.push_back(left + " " + right);
  }
  for (const auto& [content, id] :
       {std::pair<const char*, int>{"<|im_start|>", kStart}, {"<|im_end|>", kEnd}}) {
    added.push_back({{"id", id}, {"content", content}, {"special", true}});
  }
  return {{"added_tokens", added},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

class TextModelTest : public testing::Test {
 protected:
  TextModelTest()
      : root_(std::filesystem::path(testing::TempDir()) /
              absl::StrCat("text-model-", testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    const std::filesystem::path tiny = RIDGE_TEST_DATA_DIR "/tiny-qwen2";
    for (const char* name : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(tiny / name, root_ / name);
    }
    std::ifstream file(RIDGE_TEST_DATA_DIR "/tokenizer-qwen2.5/tokenizer_config.json");
    tokenizer_config_ = {{"chat_template", ordered_json::parse(file)["chat_template"]},
                         {"eos_token", "<|im_end|>"}};
  }
  ~TextModelTest() override { std::filesystem::remove_all(root_); }

  void Write(const char* name, const std::string& text) { std::ofstream(root_ / name) << text; }
  absl::StatusOr<std::unique_ptr<Worker>> Start() {
    Write("tokenizer_config.json", tokenizer_config_.dump());
    WorkerConfig config;
    config.model = root_.string();
    config.chat_template = chat_template_;
    config.listen = "127.0.0.1:0";
    config.metrics_port = -1;
    config.threads = 1;
    config.kv_cache_bytes = 4 << 20;
    return Worker::Start(config);
  }
  static void ExpectNoChat(const Worker& worker, const std::string& why) {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    const grpc::Status status = StubOf(worker)->Tokenize(
        &context, FromText<v1::TokenizeRequest>("chat { messages { role: 'user' content: 'a' } }"),
        &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(why));
  }
  static std::unique_ptr<v1::Inference::Stub> StubOf(const Worker& worker) {
    return v1::Inference::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", worker.grpc_port()),
                                                      grpc::InsecureChannelCredentials()));
  }

  const std::filesystem::path root_;
  ordered_json tokenizer_config_;
  std::string chat_template_;  // as the flag names it
};

TEST_F(TextModelTest, ServesTextFromAHuggingFaceDirectory) {
  Write("tokenizer.json", TinyTokenizer().dump());
  const auto worker = Start();
  ASSERT_TRUE(worker.ok()) << worker.status();
  const auto stub = StubOf(**worker);
  {
    grpc::ClientContext context;
    v1::GetModelResponse model;
    ASSERT_TRUE(stub->GetModel(&context, v1::GetModelRequest(), &model).ok());
    EXPECT_EQ(model.chat_template(), "qwen2.5");
    EXPECT_TRUE(model.has_tokenizer());
    // The configuration has another end; the tokenizer's own is one too.
    EXPECT_THAT(model.eos_token_ids(), testing::Contains(kEnd));
  }
  grpc::ClientContext context;
  const auto reader = stub->Generate(
      &context, FromText<v1::GenerateRequest>("prompt: 'ab\\n' max_tokens: 40 ignore_eos: true "
                                              "sampling { temperature: 0 }"));
  std::string bytes, text;
  v1::GenerateResponse message;
  int prompt_tokens = 0;
  while (reader->Read(&message)) {
    for (const v1::Token& token : message.choices(0).tokens()) {
      if (token.id() < kStart) bytes += token.bytes();
      text += token.text();
    }
    prompt_tokens = message.summary().usage().prompt_tokens();
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(prompt_tokens, 2);
  EXPECT_NE(bytes, "");
  EXPECT_GE(text.size(), bytes.size());  // what is no character became U+FFFD
}

TEST_F(TextModelTest, RendersToolsOfAChat) {
  Write("tokenizer.json", TinyTokenizer().dump());
  const auto worker = Start();
  ASSERT_TRUE(worker.ok()) << worker.status();
  grpc::ClientContext context;
  v1::TokenizeResponse response;
  const grpc::Status status = StubOf(**worker)->Tokenize(&context, FromText<v1::TokenizeRequest>(R"(chat {
        messages { role: 'user' content: 'Paris?<|im_end|>' }
        messages { role: 'assistant' tool_calls { name: 'f' arguments: '{"x":1}' } }
        messages { role: 'tool' content: '18' }
        tools: '{"b":1,"a":[]}' })"),
                                                         &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  std::string text;
  int control = 0;
  for (int i = 0; i < response.ids_size(); ++i) {
    text += response.pieces(i);
    control += response.ids(i) >= kStart ? 1 : 0;
  }
  EXPECT_EQ(control, 9);  // four messages and the opening; not the one in the content
  EXPECT_THAT(text, StartsWith("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a "
                               "helpful assistant.\n\n# Tools\n"));
  EXPECT_THAT(text, HasSubstr("<tools>\n{\"b\": 1, \"a\": []}\n</tools>"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "<|im_start|>user\nParis?<|im_end|><|im_end|>\n"
          "<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": "
          "1}}\n</tool_call><|im_end|>\n"
          "<|im_start|>user\n<tool_response>\n18\n</tool_response><|im_end|>\n<|im_start|>assistant\n"));
}

TEST_F(TextModelTest, ATemplateWhoseControlTokenIsNotSpecialLeavesChatOut) {
  ordered_json tokenizer = TinyTokenizer();
  tokenizer["added_tokens"][0]["special"] = false;
  Write("tokenizer.json", tokenizer.dump());
  const auto worker = Start();
  ASSERT_TRUE(worker.ok()) << worker.status();
  ExpectNoChat(**worker, "chat: the chat template qwen2.5 needs the special token \"<|im_start|>\"");
  chat_template_ = "qwen2.5";
  EXPECT_THAT(std::string(Start().status().message()),
              StartsWith("--chat_template: the chat template qwen2.5 needs"));
}

TEST_F(TextModelTest, AnUnknownChatTemplateLeavesChatOut) {
  Write("tokenizer.json", TinyTokenizer().dump());
  tokenizer_config_["chat_template"] = "{{ messages }}";
  const auto worker = Start();
  ASSERT_TRUE(worker.ok()) << worker.status();
  ExpectNoChat(**worker, "chat: the model's chat template is not known (SHA-256 ");
}

TEST_F(TextModelTest, ABrokenTokenizerNamesFileAndField) {
  Write("tokenizer.json", R"({"model": {"type": "Unigram"}})");
  const std::string message(Start().status().message());
  EXPECT_THAT(message, StartsWith("--model: "));
  EXPECT_THAT(message, HasSubstr("tokenizer.json: model.type: \"Unigram\" is not supported (SentencePiece)"));
}

}  // namespace
}  // namespace ridge::worker
