// Byte-level BPE: text to token ids and back.
//
// A text is first cut at added and special tokens (the longest that matches, leftmost first), normalised
// where the model asks for it, then cut by the split steps into words; each word starts as single bytes and
// its neighbours are merged by rank.
//
// Immutable after Create: all members may be called from many threads at once. Working memory is kept from
// call to call, one for each call under way, a few at most.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "worker/text/added_tokens.h"
#include "worker/text/bpe.h"
#include "worker/text/split_pattern.h"
#include "worker/text/tokenizer_spec.h"

namespace ridge::worker {

struct EncodeOptions {
  bool parse_special = false;       // the text of a special token becomes that token
  bool add_special_tokens = false;  // BOS and EOS as the model has them
};

class Tokenizer {
 public:
  // INVALID_ARGUMENT where the parts do not fit together, UNIMPLEMENTED for a split expression that is not
  // supported; the message names the part.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerSpec spec);

  // INVALID_ARGUMENT where the text is not UTF-8.
  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text, EncodeOptions options) const;

  int32_t vocab_size() const { return static_cast<int32_t>(spec_.tokens.size()); }
  // Requires 0 <= id < vocab_size().
  absl::string_view TokenBytes(TokenId id) const { return spec_.tokens[id].bytes; }
  bool IsSpecial(TokenId id) const { return spec_.tokens[id].kind == TokenKind::kSpecial; }
  // The raw bytes of the ids, which need not be UTF-8.
  std::string Decode(absl::Span<const TokenId> ids, bool skip_special) const;

  // The special token with this text; -1 where there is none.
  TokenId FindSpecial(absl::string_view text) const;
  TokenId bos_id() const { return spec_.bos_id; }  // -1: none
  TokenId eos_id() const { return spec_.eos_id; }
  const std::string& chat_template() const { return spec_.chat_template; }

 private:
  // What one call works with.
  struct Scratch {
    BpeScratch bpe;
    SplitScratch split;
  };

  explicit Tokenizer(TokenizerSpec spec) : spec_(std::move(spec)) {}
  absl::Status Build();
  absl::Status CheckIds() const;

  std::unique_ptr<Scratch> TakeScratch() const;
  void ReturnScratch(std::unique_ptr<Scratch> scratch) const;

  // A text without what was added around it.
  absl::Status EncodeText(absl::string_view text, bool parse_special, Scratch& scratch,
                          std::vector<TokenId>* ids) const;
  // What lies between the tokens of `raw_added_`.
  absl::Status EncodeStretch(absl::string_view text, bool parse_special, Scratch& scratch,
                             std::vector<TokenId>* ids) const;
  // What lies between all added and special tokens; cuts it by the split steps from this one on.
  absl::Status EncodeCut(absl::string_view text, size_t step, Scratch& scratch,
                         std::vector<TokenId>* ids) const;

  TokenizerSpec spec_;
  std::vector<SplitPattern> patterns_;  // by split step
  Bpe bpe_;
  AddedTokens raw_added_;         // looked for in the text as it is
  AddedTokens normalized_added_;  // looked for after normalisation

  mutable absl::Mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ridge::worker
