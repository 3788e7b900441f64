// A model of 1,000 tokens as services see one: all single bytes, the two control tokens of ChatML, and words.
#pragma once

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "worker/service/served_model.h"

namespace ridge::worker {

constexpr TokenId kImStart = 256;
constexpr TokenId kImEnd = 257;  // ends a sequence
constexpr TokenId kFirstWord = 258;
constexpr int32_t kSmallVocabSize = 1000;

inline std::string WordOf(TokenId id) {
  return absl::StrCat(" w", id);
}

inline ServedModel SmallModel() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.tokens.push_back({std::string(1, static_cast<char>(byte))});
  spec.tokens.push_back({"<|im_start|>", TokenKind::kSpecial});
  spec.tokens.push_back({"<|im_end|>", TokenKind::kSpecial});
  for (TokenId id = kFirstWord; id < kSmallVocabSize; ++id) spec.tokens.push_back({WordOf(id)});
  ServedModel model;
  model.name = "small";
  model.config.vocab_size = kSmallVocabSize;
  model.config.eos_token_ids = {kImEnd};
  model.context_length = 4096;
  model.tokenizer = Tokenizer::Create(std::move(spec)).value();
  model.token_index = std::make_unique<TokenIndex>(model.tokenizer.get());
  model.chat_template = ChatTemplate::FromName("chatml").value();
  model.numerics_id = "small-numerics";
  model.device = "none";
  model.kv_capacity_tokens = 65536;
  model.extended_sampling = true;
  model.max_batch = 200;
  return model;
}

// The same without text.
inline ServedModel SmallModelWithoutTokenizer() {
  ServedModel model = SmallModel();
  model.tokenizer = nullptr;
  model.token_index = nullptr;
  model.chat_template.reset();
  return model;
}

// A message in protobuf's text format.
template <typename Proto>
Proto FromText(const std::string& text) {
  Proto message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

}  // namespace ridge::worker
