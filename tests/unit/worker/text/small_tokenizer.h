// A tokenizer with all single bytes, a few merges and two special tokens.
#pragma once

#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "worker/text/tokenizer.h"

namespace ridge::worker {

inline TokenizerSpec SmallTokenizerSpec() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) spec.tokens.push_back({std::string(1, static_cast<char>(byte))});
  spec.tokens.push_back({"he"});                              // 256
  spec.tokens.push_back({"ll"});                              // 257
  spec.tokens.push_back({"hell"});                            // 258
  spec.tokens.push_back({"<end>", TokenKind::kSpecial});      // 259
  spec.tokens.push_back({"<tool>", TokenKind::kAdded});       // 260
  spec.tokens.push_back({"<end>more", TokenKind::kSpecial});  // 261
  spec.merges = {{'h', 'e', 256}, {'l', 'l', 257}, {256, 257, 258}};
  spec.splits = {{"[a-z]+"}};
  spec.bos_id = 259;
  spec.prefix = {259};
  return spec;
}

inline std::unique_ptr<Tokenizer> SmallTokenizer() {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(SmallTokenizerSpec());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

}  // namespace ridge::worker
