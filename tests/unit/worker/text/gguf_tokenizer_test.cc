#include "worker/text/gguf_tokenizer.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/model/file_builders.h"
#include "worker/text/tokenizer.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What a test may change about a small file that is in order.
struct Parts {
  std::string model = "gpt2";
  std::string pre = "qwen2";
  std::vector<std::string> tokens = {"a",     "s",      "1",       "2",      "'",      "as", "12",
                                     "'s",    "\u0120", "\u0120a", "\u00C3", "\u00A9", "e",  "\u00C3\u00A9",
                                     "<eos>", "<tool>"};
  std::vector<int32_t> types = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 4};
  std::vector<std::string> merges = {"a s", "1 2", "' s", "\u0120 a", "\u00C3 \u00A9"};
  uint32_t eos = 14;
};

absl::StatusOr<TokenizerSpec> Read(const Parts& parts) {
  const auto strings = [](const std::vector<std::string>& values) {
    std::string bytes;
    for (const std::string& value : values) bytes += GgufBuilder::String(value);
    return bytes;
  };
  GgufBuilder builder;
  builder.Text("tokenizer.ggml.model", parts.model)
      .Text("tokenizer.ggml.pre", parts.pre)
      .Array("tokenizer.ggml.tokens", 8, parts.tokens.size(), strings(parts.tokens))
      .Array("tokenizer.ggml.token_type", 5, parts.types.size(), BytesOf(parts.types))
      .Array("tokenizer.ggml.merges", 8, parts.merges.size(), strings(parts.merges))
      .U32("tokenizer.ggml.eos_token_id", parts.eos);
  absl::StatusOr<std::unique_ptr<GgufFile>> file =
      GgufFile::Open(WriteFile("vocabulary.gguf", builder.Build()));
  if (!file.ok()) return file.status();
  return TokenizerSpecFromGguf(**file);
}

std::vector<TokenId> Encode(const Parts& parts, const std::string& text) {
  absl::StatusOr<TokenizerSpec> spec = Read(parts);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return (*Tokenizer::Create(*std::move(spec)))->Encode(text, {}).value();
}

TEST(GgufTokenizer, ReadsPiecesKindsAndIds) {
  const absl::StatusOr<TokenizerSpec> spec = Read({});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->tokens[9].bytes, " a");
  EXPECT_EQ(spec->tokens[13].bytes, "\xC3\xA9");
  EXPECT_EQ(spec->tokens[13].kind, TokenKind::kNormal);
  EXPECT_EQ(spec->tokens[14].kind, TokenKind::kSpecial);
  EXPECT_EQ(spec->tokens[15].kind, TokenKind::kAdded);
  EXPECT_EQ(spec->eos_id, 14);
  EXPECT_EQ(spec->bos_id, -1);
  EXPECT_THAT(spec->prefix, ElementsAre());
}

TEST(GgufTokenizer, Gpt2KeepsNumeralsTogether) {
  Parts parts;
  parts.pre = "gpt-2";
  EXPECT_THAT(Encode(parts, "12 a"), ElementsAre(6, 9));
  EXPECT_THAT(Encode(parts, "as's"), ElementsAre(5, 7));
  EXPECT_FALSE(Read(parts)->normalize_nfc);
}

TEST(GgufTokenizer, SmolLmCutsNumeralsApart) {
  Parts parts;
  parts.pre = "smollm";
  EXPECT_THAT(Encode(parts, "12 a"), ElementsAre(2, 3, 9));
}

TEST(GgufTokenizer, Qwen2CutsNumeralsApartAndNormalises) {
  EXPECT_THAT(Encode({}, "12 a"), ElementsAre(2, 3, 9));
  EXPECT_THAT(Encode({}, "e\u0301"), ElementsAre(13));
  EXPECT_THAT(Encode({}, "\u00E9<tool>e"), ElementsAre(13, 15, 12));
}

TEST(GgufTokenizer, SaysWhatIsNotSupported) {
  Parts parts;
  parts.model = "llama";
  absl::Status status = Read(parts).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.ggml.model: \"llama\" is not supported"));

  parts = {};
  parts.pre = "mystery";
  status = Read(parts).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.ggml.pre: pre-tokenizer \"mystery\""));
}

TEST(GgufTokenizer, NamesTheKeyThatIsBroken) {
  const auto expect_error = [](const Parts& parts, const std::string& message) {
    const absl::Status status = Read(parts).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("vocabulary.gguf: " + message));
  };
  Parts parts;
  parts.types.pop_back();
  expect_error(parts, "tokenizer.ggml.token_type: 15 types for 16 tokens");
  parts = {};
  parts.types[3] = 99;
  expect_error(parts, "tokenizer.ggml.token_type[3]: unknown type 99");
  parts = {};
  parts.tokens[2] = "\u4E00";
  expect_error(parts, "tokenizer.ggml.tokens[2]: ");
  parts = {};
  parts.merges[1] = "12";
  expect_error(parts, "tokenizer.ggml.merges[1]: not two byte-level pieces");
  parts = {};
  parts.merges[1] = "1 a";
  expect_error(parts, "tokenizer.ggml.merges[1]: uses a piece that is not in the vocabulary");
  parts = {};
  parts.eos = 16;
  expect_error(parts, "tokenizer.ggml.eos_token_id: 16 is not one of the 16 tokens");
}

TEST(GgufTokenizer, RefusesMoreTokensThanAnyModelHas) {
  Parts parts;
  parts.tokens.assign(kMaxVocabularyTokens + 1, "");
  EXPECT_THAT(std::string(Read(parts).status().message()),
              HasSubstr("tokenizer.ggml.tokens: 524289 elements: more than 524288"));
}

TEST(GgufTokenizer, HalfATokenizerIsBroken) {
  const auto file =
      GgufFile::Open(WriteFile("half.gguf", GgufBuilder().Text("tokenizer.ggml.model", "gpt2").Build()));
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status status = TokenizerSpecFromGguf(**file).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("half.gguf: metadata tokenizer.ggml.pre: missing"));
}

TEST(GgufTokenizer, Llama3TakesWholeWordsAndThreeDigitsAndPutsBosInFront) {
  Parts parts;
  parts.pre = "llama-bpe";
  parts.tokens[7] = "2121";
  parts.merges = {"a s"};
  EXPECT_TRUE(Read(parts)->ignore_merges);
  EXPECT_THAT(Encode(parts, "12"), ElementsAre(6));
  EXPECT_THAT(Encode(parts, "2121"), ElementsAre(3, 2, 3, 2));  // 212 and 1
  EXPECT_THAT(Read(parts)->prefix, ElementsAre());              // no BOS is named
}

TEST(GgufTokenizer, AFileWithoutATokenizerIsNotFound) {
  const auto file = GgufFile::Open(WriteFile("plain.gguf", GgufBuilder().U32("x", 1).Build()));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(TokenizerSpecFromGguf(**file).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ridge::worker
