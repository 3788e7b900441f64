// What a tokenizer is made of, whatever file it came from. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ridge::worker {

using TokenId = int32_t;

enum class TokenKind : uint8_t {
  kNormal,   // made by merges
  kSpecial,  // a control token: its text stands for it only where the request says so
  kAdded,    // recognised in every text, but an ordinary part of it
  kUnused,
};

struct TokenizerSpec {
  struct Token {
    std::string bytes;  // raw, not in a printable stand-in
    TokenKind kind = TokenKind::kNormal;
  };
  std::vector<Token> tokens;  // by id

  // Text between added and special tokens is put into Unicode's normalization form C before it is cut.
  bool normalize_nfc = false;

  // In order of rank; the bytes of both parts.
  std::vector<std::pair<std::string, std::string>> merges;

  // Regular expressions that cut a text, one after the other: each cuts every piece of the one before into
  // its matches and what lies between them.
  std::vector<std::string> split_patterns;

  TokenId bos_id = -1;  // -1: none
  TokenId eos_id = -1;
  bool add_bos = false;  // around a text, where add_special_tokens is set
  bool add_eos = false;

  // The chat template's source; empty where the model has none.
  std::string chat_template;
};

}  // namespace ridge::worker
