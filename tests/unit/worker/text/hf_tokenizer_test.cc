#include "worker/text/hf_tokenizer.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/text/tokenizer.h"

namespace ridge::worker {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A small file that is in order; \u0120 stands for a space.
ordered_json SmallFile() {
  return ordered_json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 12, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
      {"id": 13, "content": "<tool>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "",
      "fuse_unk": false, "byte_fallback": false,
      "vocab": {"a": 0, "b": 1, "1": 2, "2": 3, "\u0120": 4, "ab": 5, "12": 6, "\u0120a": 7, "\u00c3": 8, "\u00a9": 9, "\u00c3\u00a9": 10, "e": 11},
      "merges": ["a b", "1 2", "\u0120 a", "\u00c3 \u00a9"]}})");
}

absl::StatusOr<TokenizerSpec> Read(const ordered_json& file) {
  return TokenizerSpecFromJson(file.dump(), "dir/tokenizer.json");
}

std::vector<TokenId> Encode(const ordered_json& file, const std::string& text, EncodeOptions options = {}) {
  absl::StatusOr<TokenizerSpec> spec = Read(file);
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (!spec.ok()) return {};
  auto tokenizer = Tokenizer::Create(*std::move(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *(*tokenizer)->Encode(text, options) : std::vector<TokenId>();
}

TEST(HfTokenizer, ReadsVocabularyMergesAndAddedTokens) {
  const auto spec = Read(SmallFile());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->tokens[7].bytes, " a");
  EXPECT_EQ(spec->tokens[10].bytes, "\u00e9");
  EXPECT_EQ(spec->tokens[12].kind, TokenKind::kSpecial);
  EXPECT_EQ(spec->tokens[13].kind, TokenKind::kAdded);
  EXPECT_THAT(Encode(SmallFile(), "ab a12\u00e9"), ElementsAre(5, 7, 6, 10));
  EXPECT_THAT(Encode(SmallFile(), "a<eos>b<tool>", {.parse_special = true}), ElementsAre(0, 12, 1, 13));
  // Bytes that the vocabulary lacks are dropped.
  EXPECT_THAT(Encode(SmallFile(), "a<eos>b<tool>"), ElementsAre(0, 11, 1, 13));
}

TEST(HfTokenizer, ReadsMergesAsPairsAndInAnyOrder) {
  ordered_json file = SmallFile();
  file["model"]["merges"] = ordered_json::parse(R"([["a", "b"], ["1", "2"]])");
  EXPECT_THAT(Encode(file, "ab 12"), ElementsAre(5, 4, 6));
  ordered_json model = {{"merges", file["model"]["merges"]}, {"type", "BPE"}};
  model["vocab"] = file["model"]["vocab"];
  file["model"] = model;
  EXPECT_THAT(Encode(file, "ab 12"), ElementsAre(5, 4, 6));
}

TEST(HfTokenizer, IgnoresMergesWhereAsked) {
  ordered_json file = SmallFile();
  file["model"]["vocab"]["aba"] = 14;
  EXPECT_THAT(Encode(file, "aba"), ElementsAre(5, 0));
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(Encode(file, "aba"), ElementsAre(14));
}

TEST(HfTokenizer, ReadsPreTokenizers) {
  ordered_json file = SmallFile();
  ordered_json& pre = file["pre_tokenizer"];
  pre["add_prefix_space"] = true;
  EXPECT_THAT(Encode(file, "a"), ElementsAre(7));
  EXPECT_THAT(Encode(file, "<tool>a", {}), ElementsAre(13, 7));
  const ordered_json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  pre = bytes;
  EXPECT_THAT(Encode(file, "a12"), ElementsAre(0, 6));
  const auto sequence = [&](const ordered_json& first) {
    pre = {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({first, bytes})}};
  };
  sequence({{"type", "Digits"}, {"individual_digits", true}});
  EXPECT_THAT(Encode(file, "a12"), ElementsAre(0, 2, 3));
  sequence({{"type", "Digits"}, {"individual_digits", false}});
  EXPECT_THAT(Encode(file, "a12"), ElementsAre(0, 6));
  sequence({{"type", "Split"}, {"pattern", {{"String", "b"}}}, {"behavior", "Removed"}, {"invert", false}});
  EXPECT_THAT(Encode(file, "ab12"), ElementsAre(0, 6));
  sequence(
      {{"type", "Split"}, {"pattern", {{"Regex", "[ab]"}}}, {"behavior", "Isolated"}, {"invert", false}});
  EXPECT_THAT(Encode(file, "ab12"), ElementsAre(0, 1, 6));
}

TEST(HfTokenizer, ReadsNormalizersAndPutsTokensAround) {
  ordered_json file = SmallFile();
  EXPECT_THAT(Encode(file, "e\u0301"), ElementsAre(11));
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", ordered_json::array({{{"type", "NFC"}}})}};
  EXPECT_THAT(Encode(file, "e\u0301"), ElementsAre(10));
  const ordered_json template_processing = ordered_json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<eos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<eos>": {"id": "<eos>", "ids": [12], "tokens": ["<eos>"]}}})");
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors", ordered_json::array({{{"type", "ByteLevel"}}, template_processing})}};
  EXPECT_THAT(Encode(file, "a", {.add_special_tokens = true}), ElementsAre(12, 0));
  EXPECT_THAT(Encode(file, "a"), ElementsAre(0));
}

// As the package has it; but that a special one comes from text only where special tokens may.
TEST(HfTokenizer, BytesThatAreNoTokenBecomeTheUnknownToken) {
  ordered_json file = SmallFile();
  const EncodeOptions parsed = {.parse_special = true};
  EXPECT_THAT(Encode(file, "axyb", parsed), ElementsAre(5));
  file["model"]["unk_token"] = "<eos>";
  EXPECT_THAT(Encode(file, "axyb", parsed), ElementsAre(0, 12, 12, 1));
  EXPECT_THAT(Encode(file, "axyb"), ElementsAre(5));
  file["model"]["fuse_unk"] = true;
  EXPECT_THAT(Encode(file, "axybxab", parsed), ElementsAre(0, 12, 1, 12, 5));
  file["added_tokens"][0]["special"] = false;
  EXPECT_THAT(Encode(file, "axyb"), ElementsAre(0, 12, 1));
}

TEST(HfTokenizer, AWordKeepsNoAnswerOfAnotherWay) {
  ordered_json file = SmallFile();
  file["model"]["unk_token"] = "<eos>";
  const auto tokenizer = *Tokenizer::Create(*Read(file));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(*tokenizer->Encode("axb", {.parse_special = true}), ElementsAre(0, 12, 1));
    EXPECT_THAT(*tokenizer->Encode("axb", {.parse_special = false}), ElementsAre(5));
  }
}

TEST(HfTokenizer, NamesFileAndFieldOfWhatIsNotSupported) {
  const auto expect = [](const std::string& pointer, const ordered_json& value, const std::string& message) {
    ordered_json file = SmallFile();
    file[ordered_json::json_pointer(pointer)] = value;
    const absl::Status status = Read(file).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("dir/tokenizer.json: " + message));
  };
  expect("/model/type", "Unigram",
         "model.type: \"Unigram\" is not supported (SentencePiece), only byte-level BPE");
  expect("/model/type", "WordPiece", "model.type: \"WordPiece\" is not supported, only byte-level BPE");
  expect("/model/byte_fallback", true, "model.byte_fallback: ");
  expect("/model/dropout", 0.1, "model.dropout: ");
  expect("/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix: ");
  expect("/normalizer", {{"type", "NFKC"}}, "normalizer.type: \"NFKC\"");
  expect("/normalizer", {{"type", "Prepend"}},
         "normalizer.type: \"Prepend\" is of SentencePiece's tokenizers");
  expect("/pre_tokenizer", nullptr, "pre_tokenizer: only byte-level");
  expect("/pre_tokenizer", {{"type", "Metaspace"}}, "pre_tokenizer: type: \"Metaspace\"");
  expect("/decoder", {{"type", "WordPiece"}}, "decoder.type: \"WordPiece\"");
  expect("/post_processor", {{"type", "BertProcessing"}}, "post_processor.type: \"BertProcessing\"");
  expect("/added_tokens/0/lstrip", true, "added_tokens[0].lstrip: ");
  expect("/added_tokens/1/single_word", true, "added_tokens[1].single_word: ");
}

TEST(HfTokenizer, NamesFileAndFieldOfWhatIsBroken) {
  const auto expect = [](const std::string& pointer, const ordered_json& value, const std::string& message) {
    ordered_json file = SmallFile();
    file[ordered_json::json_pointer(pointer)] = value;
    const absl::Status status = Read(file).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("dir/tokenizer.json: " + message));
  };
  expect("/model", 1, "model: not an object");
  expect("/model/vocab", ordered_json::object(), "model.merges[0]: uses a piece");
  expect("/model/vocab/a", 1, "model.vocab.b: id 1 is given twice");
  expect("/model/vocab/a", -1, "model.vocab.a: id -1 is not in");
  expect("/model/vocab/a", 2000000000, "model.vocab.a: id 2000000000 is not in");
  expect("/model/vocab/a", 1.5, "model.vocab.a: not an integer");
  expect("/model/vocab/", 20, "model.vocab.: an empty token");
  expect("/model/unk_token", "<unk>", "model.unk_token: \"<unk>\" is not one of the tokens");
  expect("/model/merges/1", "12", "model.merges[1]: not two byte-level pieces");
  expect("/model/merges/1", "1 x", "model.merges[1]: uses a piece that is not in the vocabulary");
  expect("/model/merges/2", ordered_json::array({"a", "b", "c"}), "model.merges[2][2]: more than two");
  expect("/model/merges/2", ordered_json::array({"a"}), "model.merges[2]: not two byte-level pieces");
  expect("/added_tokens/1/id", 12, "added_tokens[1]: id 12 is given twice");
  expect("/added_tokens/1/content", "", "added_tokens[1]: content: ");
  expect("/pre_tokenizer/use_regex", 1, "pre_tokenizer.use_regex: not true or false");
  expect("/pre_tokenizer", {{"type", "Split"}, {"behavior", "Isolated"}}, "pre_tokenizer: pattern: missing");
  expect("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}},
         "pre_tokenizer.pattern.Regex: not a regular expression: missing closing parenthesis");
  std::string twice = SmallFile().dump();
  twice.insert(twice.find("\"b\":1"), "\"a\":20,");
  EXPECT_EQ(TokenizerSpecFromJson(twice, "t.json").status().message(),
            "t.json: model.vocab: the token of id 20 has another id too");
  ordered_json file = SmallFile();
  file.erase("model");
  EXPECT_EQ(Read(file).status().message(), "dir/tokenizer.json: model: missing");
}

TEST(HfTokenizer, ReadsTheConfiguration) {
  const auto add = [](const std::string& config) {
    TokenizerSpec spec = *Read(SmallFile());
    const absl::Status status = AddTokenizerConfig(config, "dir/tokenizer_config.json", &spec);
    EXPECT_TRUE(status.ok()) << status;
    return spec;
  };
  TokenizerSpec spec = add(R"({"bos_token": null, "eos_token": "<eos>", "chat_template": "x"})");
  EXPECT_EQ(spec.bos_id, -1);
  EXPECT_EQ(spec.eos_id, 12);
  EXPECT_EQ(spec.chat_template, "x");
  EXPECT_THAT(spec.prefix, ElementsAre());
  spec = add(R"({"bos_token": {"content": "<eos>", "lstrip": false}, "add_bos_token": true,
                 "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(spec.bos_id, 12);
  EXPECT_EQ(spec.chat_template, "d");
  EXPECT_THAT(spec.prefix, ElementsAre(12));
}

TEST(HfTokenizer, TakesAddedTokensOfTheConfiguration) {
  TokenizerSpec spec = *Read(SmallFile());
  const absl::Status status = AddTokenizerConfig(
      R"({"added_tokens_decoder": {"0": {"content": "a", "special": false}, "12": {"content": "<eos>"},
          "13": {"content": "<tool>", "normalized": true, "special": true},
          "15": {"content": "<new>", "lstrip": false, "special": true}}, "eos_token": "<new>"})",
      "c.json", &spec);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(spec.tokens.size(), 16u);
  EXPECT_EQ(spec.tokens[0].kind, TokenKind::kAdded);
  EXPECT_EQ(spec.tokens[12].kind, TokenKind::kSpecial);
  EXPECT_EQ(spec.tokens[13].kind, TokenKind::kSpecial);
  EXPECT_FALSE(spec.tokens[13].normalized);  // tokenizer.json says so
  EXPECT_EQ(spec.tokens[14].kind, TokenKind::kUnused);
  EXPECT_EQ(spec.tokens[15].bytes, "<new>");
  EXPECT_EQ(spec.eos_id, 15);
  const auto tokenizer = *Tokenizer::Create(std::move(spec));
  EXPECT_THAT(*tokenizer->Encode("b<new>", {.parse_special = true}), ElementsAre(1, 15));
}

TEST(HfTokenizer, NamesTheFieldOfABrokenConfiguration) {
  const auto error_of = [](const std::string& config) {
    TokenizerSpec spec = *Read(SmallFile());
    return std::string(AddTokenizerConfig(config, "dir/tokenizer_config.json", &spec).message());
  };
  EXPECT_EQ(error_of(R"({"eos_token": "<nope>"})"),
            "dir/tokenizer_config.json: eos_token: \"<nope>\" is not one of the tokens");
  EXPECT_EQ(error_of(R"({"eos_token": 5})"), "dir/tokenizer_config.json: eos_token: not an object");
  EXPECT_EQ(error_of(R"({"add_bos_token": true})"),
            "dir/tokenizer_config.json: add_bos_token: there is no such token");
  EXPECT_EQ(error_of(R"({"added_tokens_decoder": {"12": {"content": "<bos>"}}})"),
            "dir/tokenizer_config.json: added_tokens_decoder.12: \"<bos>\" is not what tokenizer.json gives "
            "to this id");
  EXPECT_EQ(error_of(R"({"added_tokens_decoder": {"-1": {"content": "x"}}})"),
            "dir/tokenizer_config.json: added_tokens_decoder.-1: the id is not in [0, 524288)");
  EXPECT_EQ(error_of(R"({"added_tokens_decoder": {"15": {"content": "x", "rstrip": true}}})"),
            "dir/tokenizer_config.json: added_tokens_decoder.15.rstrip: true is not supported");
  EXPECT_EQ(error_of(R"({"added_tokens_decoder": {"15": {}}})"),
            "dir/tokenizer_config.json: added_tokens_decoder.15: content: missing or empty");
  EXPECT_EQ(error_of(R"({"chat_template": [1]})"),
            "dir/tokenizer_config.json: chat_template[0]: not an object");
}

class HfTokenizerDirectory : public testing::Test {
 protected:
  HfTokenizerDirectory()
      : root_(std::filesystem::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  ~HfTokenizerDirectory() override { std::filesystem::remove_all(root_); }

  void Write(const char* name, const std::string& text) {
    std::ofstream(root_ / name, std::ios::binary) << text;
  }
  absl::StatusOr<TokenizerSpec> Open() { return TokenizerSpecFromHfDirectory(root_.string()); }

  const std::filesystem::path root_;
};

TEST_F(HfTokenizerDirectory, ATemplateFileGoesFirst) {
  Write("tokenizer.json", SmallFile().dump());
  EXPECT_EQ(Open()->chat_template, "");
  Write("tokenizer_config.json", R"({"eos_token": "<eos>", "chat_template": "config"})");
  EXPECT_EQ(Open()->chat_template, "config");
  EXPECT_EQ(Open()->eos_id, 12);
  Write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(Open()->chat_template, "json");
  Write("chat_template.jinja", "jinja");
  EXPECT_EQ(Open()->chat_template, "jinja");
}

TEST_F(HfTokenizerDirectory, SaysWhatIsMissingOrNotSupported) {
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kNotFound);
  Write("tokenizer.model", "x");
  absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.model: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("SentencePiece"));
  Write("tokenizer.json", "{");
  status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json: ends in the middle"));
}

}  // namespace
}  // namespace ridge::worker
