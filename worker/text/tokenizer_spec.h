// What a tokenizer is made of, whatever file it came from. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ridge::worker {

using TokenId = int32_t;

// More than any published tokenizer has; bounds what a hostile file can make of its bytes.
inline constexpr int64_t kMaxVocabularyTokens = 1 << 19;
inline constexpr int64_t kMaxMerges = 1 << 20;

enum class TokenKind : uint8_t {
  kNormal,   // made by merges
  kSpecial,  // a control token: its text stands for it only where the request says so
  kAdded,    // recognised in every text, but an ordinary part of it
  kUnused,   // has a text perhaps, and is never made from one
};

// One step of cutting a text: what becomes of the matches of a regular expression and of the gaps between
// them.
struct SplitStep {
  enum class Behavior : uint8_t {
    kIsolated,            // each match and each gap is a piece
    kRemoved,             // matches are dropped
    kMergedWithPrevious,  // a match ends the piece before it
    kMergedWithNext,      // a match begins the piece after it
    kContiguous,          // matches that touch are one piece
  };
  std::string regex;  // as in tokenizer.json, which is Oniguruma's dialect; empty: no cut
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;        // matches and gaps swap their roles
  bool prefix_space = false;  // first of all a space goes in front of a piece that does not begin with one
};

struct TokenizerSpec {
  struct Token {
    std::string bytes;  // raw, not in a printable stand-in
    TokenKind kind = TokenKind::kNormal;
    bool normalized = false;  // an added or special token that is looked for after normalisation, not before
  };
  std::vector<Token> tokens;  // by id

  // Text between added and special tokens is put into Unicode's normalization form C before it is cut.
  bool normalize_nfc = false;

  // In order of rank.
  struct Merge {
    TokenId left;
    TokenId right;
    TokenId merged;
  };
  std::vector<Merge> merges;
  // A word that is a token as a whole is that token, whether or not merges lead to it.
  bool ignore_merges = false;

  // What a byte becomes that the vocabulary lacks, before the merges; -1: it is dropped. Bytes that follow
  // each other are one where `fuse_unknown`.
  TokenId unknown_id = -1;
  bool fuse_unknown = false;

  // One after the other: each cuts every piece of the one before.
  std::vector<SplitStep> splits;

  // Around a text, where add_special_tokens is set.
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;

  TokenId bos_id = -1;  // -1: none
  TokenId eos_id = -1;

  // The chat template's source; empty where the model has none.
  std::string chat_template;
};

// The regular expression of GPT-2, which byte-level tokenizers use unless they say otherwise.
inline constexpr char kGpt2SplitRegex[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// Numerals, as the step Digits finds them: Unicode 17's, which are two blocks more than \p{N}.
inline constexpr char kDigitSplitRegex[] = "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]";

}  // namespace ridge::worker
