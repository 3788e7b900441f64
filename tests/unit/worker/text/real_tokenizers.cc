#include "tests/unit/worker/text/real_tokenizers.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/text/gguf_tokenizer.h"
#include "worker/text/hf_tokenizer.h"

namespace ridge::worker {
namespace {

using nlohmann::ordered_json;

constexpr char kQwen25[] = "tokenizer-qwen2.5/";
constexpr char kPlaceholder[] = "<vocabulary>";
constexpr char kSmolLm2[] = "tokenizer-smollm2/vocabulary.gguf";

std::unique_ptr<GgufFile> SmolLm2File() {
  auto file = GgufFile::Open(GoldenPath(kSmolLm2));
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

const Tokenizer* Make(absl::StatusOr<TokenizerSpec> spec) {
  EXPECT_TRUE(spec.ok()) << spec.status();
  auto tokenizer = Tokenizer::Create(*std::move(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer->release();
}

// What pack_tokenizer.py unpacks.
std::string UnpackQwen25() {
  ordered_json tokenizer = ordered_json::parse(ReadGoldenText(std::string(kQwen25) + "skeleton.json"));
  ordered_json& model = tokenizer["model"];
  std::vector<std::string> pieces;
  for (const auto& [piece, id] : model["vocab"].items()) pieces.push_back(piece);
  const std::string data = ReadGoldenText(std::string(kQwen25) + "merges.bin");
  const auto part = [&](size_t at) {
    const auto byte = [&](size_t i) { return size_t{static_cast<uint8_t>(data[at + i])}; };
    return pieces[byte(0) | byte(1) << 8 | byte(2) << 16];
  };
  std::vector<std::string> merges;
  for (size_t at = 0; at < data.size(); at += 6) {
    merges.push_back(absl::StrCat(part(at), " ", part(at + 3)));
    pieces.push_back(part(at) + part(at + 3));
  }
  model["merges"] = merges;
  // An ordered object looks for each key in all before it: the vocabulary is written by hand.
  std::string vocabulary;
  for (size_t id = 0; id < pieces.size(); ++id) {
    absl::StrAppend(&vocabulary, id == 0 ? "\n      " : ",\n      ", ordered_json(pieces[id]).dump(), ": ",
                    id);
  }
  model["vocab"] = kPlaceholder;
  std::string text = tokenizer.dump(2);
  return text.replace(text.find(kPlaceholder) - 1, sizeof(kPlaceholder) + 1,
                      absl::StrCat("{", vocabulary, "\n    }"));
}

std::string SmolLm2ToJson() {
  const std::unique_ptr<GgufFile> file = SmolLm2File();
  const auto tokens = file->GetStringArray("tokenizer.ggml.tokens").value();
  const auto types = file->GetIntArray("tokenizer.ggml.token_type").value();
  ordered_json tokenizer = {
      {"added_tokens", ordered_json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Digits"}, {"individual_digits", true}},
          {{"type", "ByteLevel"},
           {"add_prefix_space", false},
           {"trim_offsets", true},
           {"use_regex", true}}}}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"merges", ordered_json::array()}, {"vocab", kPlaceholder}}}};
  std::string vocabulary;
  for (size_t id = 0; id < tokens.size(); ++id) {
    absl::StrAppend(&vocabulary, id == 0 ? "" : ",", ordered_json(std::string(tokens[id])).dump(), ":", id);
    if (types[id] != 3) continue;
    tokenizer["added_tokens"].push_back({{"id", id},
                                         {"content", std::string(tokens[id])},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", true}});
  }
  // Pairs, as newer files have them.
  const auto merges = file->GetStringArray("tokenizer.ggml.merges").value();
  for (const absl::string_view merge : merges) {
    const size_t space = merge.find(' ');
    tokenizer["model"]["merges"].push_back(
        {std::string(merge.substr(0, space)), std::string(merge.substr(space + 1))});
  }
  std::string text = tokenizer.dump();
  return text.replace(text.find(kPlaceholder) - 1, sizeof(kPlaceholder) + 1,
                      absl::StrCat("{", vocabulary, "}"));
}

}  // namespace

std::string GoldenPath(const std::string& name) {
  return std::string(RIDGE_TEST_DATA_DIR) + "/" + name;
}

std::string ReadGoldenText(const std::string& name) {
  std::ifstream file(GoldenPath(name), std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

ordered_json ReadGolden(const std::string& name) {
  return ordered_json::parse(ReadGoldenText(name));
}

const std::string& Qwen25Json() {
  static const std::string* const text = new std::string(UnpackQwen25());
  return *text;
}

const std::string& SmolLm2Json() {
  static const std::string* const text = new std::string(SmolLm2ToJson());
  return *text;
}

const Tokenizer& Qwen25() {
  static const Tokenizer* const tokenizer = [] {
    absl::StatusOr<TokenizerSpec> spec = TokenizerSpecFromJson(Qwen25Json(), "tokenizer.json");
    EXPECT_TRUE(spec.ok()) << spec.status();
    const absl::Status status = AddTokenizerConfig(
        ReadGoldenText(std::string(kQwen25) + "tokenizer_config.json"), "tokenizer_config.json", &*spec);
    EXPECT_TRUE(status.ok()) << status;
    return Make(std::move(spec));
  }();
  return *tokenizer;
}

const Tokenizer& SmolLm2() {
  static const Tokenizer* const tokenizer = Make(TokenizerSpecFromGguf(*SmolLm2File()));
  return *tokenizer;
}

const Tokenizer& SmolLm2FromJson() {
  static const Tokenizer* const tokenizer = Make(TokenizerSpecFromJson(SmolLm2Json(), "tokenizer.json"));
  return *tokenizer;
}

}  // namespace ridge::worker
