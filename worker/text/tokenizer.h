// Byte-level BPE: text to token ids and back.
//
// A text is first cut at added and special tokens (the longest that matches, leftmost first), normalised
// where the model asks for it, then cut by the split patterns into words; each word starts as single bytes
// and its neighbours are merged by rank. Bytes that the vocabulary lacks are dropped before the merges. Time
// is n log n in the length of a word, whatever it holds.
//
// Immutable after Create: all members may be called from many threads at once.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/text/tokenizer_spec.h"

namespace ridge::worker {

struct EncodeOptions {
  bool parse_special = false;       // the text of a special token becomes that token
  bool add_special_tokens = false;  // BOS and EOS as the model has them
};

class Tokenizer {
 public:
  // INVALID_ARGUMENT where the parts do not fit together.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerSpec spec);
  ~Tokenizer();

  // INVALID_ARGUMENT where the text is not UTF-8.
  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text, EncodeOptions options) const;

  int32_t vocab_size() const { return static_cast<int32_t>(spec_.tokens.size()); }
  // Requires 0 <= id < vocab_size().
  absl::string_view TokenBytes(TokenId id) const { return spec_.tokens[id].bytes; }
  bool IsSpecial(TokenId id) const { return spec_.tokens[id].kind == TokenKind::kSpecial; }
  // The raw bytes of the ids, which need not be UTF-8.
  std::string Decode(absl::Span<const TokenId> ids, bool skip_special) const;

  const std::string& chat_template() const { return spec_.chat_template; }

 private:
  class Pattern;
  struct Merge {
    int32_t rank;
    TokenId merged;
  };

  explicit Tokenizer(TokenizerSpec spec);
  absl::Status Build();

  // The added token at the beginning of the text; -1 where there is none.
  TokenId MatchAdded(absl::string_view text, bool parse_special) const;
  // What lies between added and special tokens.
  absl::Status EncodePlain(absl::string_view text, std::vector<TokenId>* ids) const;
  // Cuts by the patterns from this one on.
  absl::Status EncodeCut(absl::string_view text, size_t pattern, std::vector<TokenId>* ids) const;
  void EncodeWord(absl::string_view word, std::vector<TokenId>* ids) const;

  const TokenizerSpec spec_;
  std::vector<std::unique_ptr<Pattern>> patterns_;
  std::array<TokenId, 256> byte_ids_;            // -1: not in the vocabulary
  absl::flat_hash_map<uint64_t, Merge> merges_;  // by the ids of both parts
  // Added and special tokens, and by first byte the sizes that they have, the longest first: a look-up costs
  // one hash a size, however many tokens there are.
  absl::flat_hash_map<absl::string_view, TokenId> added_;
  std::array<std::vector<size_t>, 256> added_sizes_;
};

}  // namespace ridge::worker
