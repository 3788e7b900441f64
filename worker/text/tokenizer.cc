#include "worker/text/tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "worker/text/nfc.h"

namespace ridge::worker {
namespace {

constexpr size_t kMostIdleScratches = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerSpec spec) {
  auto tokenizer = std::unique_ptr<Tokenizer>(new Tokenizer(std::move(spec)));
  if (absl::Status status = tokenizer->Build(); !status.ok()) return status;
  return tokenizer;
}

absl::Status Tokenizer::CheckIds() const {
  std::vector<TokenId> ids = {spec_.bos_id, spec_.eos_id};
  ids.insert(ids.end(), spec_.prefix.begin(), spec_.prefix.end());
  ids.insert(ids.end(), spec_.suffix.begin(), spec_.suffix.end());
  for (const TokenId id : ids) {
    if (id < -1 || id >= vocab_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("BOS or EOS id ", id, " is not one of the ", vocab_size(), " tokens"));
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Build() {
  if (absl::Status status = CheckIds(); !status.ok()) return status;
  for (const SplitStep& step : spec_.splits) {
    absl::StatusOr<SplitPattern> pattern = SplitPattern::Compile(step);
    if (!pattern.ok()) {
      return absl::Status(
          pattern.status().code(),
          absl::StrCat("split expression \"", step.regex.substr(0, 200), "\": ", pattern.status().message()));
    }
    patterns_.push_back(*std::move(pattern));
  }
  bpe_ = Bpe(spec_);
  spec_.merges = {};  // `bpe_` has them

  for (TokenId id = 0; id < vocab_size(); ++id) {
    const TokenizerSpec::Token& token = spec_.tokens[id];
    const bool is_special = token.kind == TokenKind::kSpecial;
    if (token.bytes.empty() || (!is_special && token.kind != TokenKind::kAdded)) continue;
    (token.normalized ? normalized_added_ : raw_added_).Add(token.bytes, id, is_special);
  }
  return absl::OkStatus();
}

TokenId Tokenizer::FindSpecial(absl::string_view text) const {
  const TokenId id = raw_added_.FindSpecial(text);
  return id >= 0 ? id : normalized_added_.FindSpecial(text);
}

std::unique_ptr<Tokenizer::Scratch> Tokenizer::TakeScratch() const {
  {
    absl::MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(idle_.back());
      idle_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void Tokenizer::ReturnScratch(std::unique_ptr<Scratch> scratch) const {
  scratch->bpe.Shrink();
  absl::MutexLock lock(&mutex_);
  if (idle_.size() < kMostIdleScratches) idle_.push_back(std::move(scratch));
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(absl::string_view text, EncodeOptions options) const {
  if (!IsValidUtf8(text)) return absl::InvalidArgumentError("not valid UTF-8");
  std::vector<TokenId> ids;
  if (options.add_special_tokens) ids = spec_.prefix;
  std::unique_ptr<Scratch> scratch = TakeScratch();
  scratch->split.Begin(text.size());
  scratch->bpe.Begin(options.parse_special);
  absl::Status status = EncodeText(text, options.parse_special, *scratch, &ids);
  ReturnScratch(std::move(scratch));
  if (!status.ok()) return status;
  if (options.add_special_tokens) ids.insert(ids.end(), spec_.suffix.begin(), spec_.suffix.end());
  return ids;
}

absl::Status Tokenizer::EncodeText(absl::string_view text, bool parse_special, Scratch& scratch,
                                   std::vector<TokenId>* ids) const {
  size_t begin = 0;
  AddedTokens::Match match;
  while (raw_added_.Find(text, begin, parse_special, &match)) {
    absl::Status status = EncodeStretch(text.substr(begin, match.begin - begin), parse_special, scratch, ids);
    if (!status.ok()) return status;
    ids->push_back(match.id);
    begin = match.end;
  }
  return EncodeStretch(text.substr(begin), parse_special, scratch, ids);
}

absl::Status Tokenizer::EncodeStretch(absl::string_view text, bool parse_special, Scratch& scratch,
                                      std::vector<TokenId>* ids) const {
  std::string normalized;
  if (spec_.normalize_nfc && !IsPlainlyNfc(text)) {
    absl::StatusOr<std::string> result = NormalizeNfc(text);
    if (!result.ok()) return result.status();
    normalized = *std::move(result);
    text = normalized;
  }
  size_t begin = 0;
  AddedTokens::Match match;
  while (normalized_added_.Find(text, begin, parse_special, &match)) {
    absl::Status status = EncodeCut(text.substr(begin, match.begin - begin), 0, scratch, ids);
    if (!status.ok()) return status;
    ids->push_back(match.id);
    begin = match.end;
  }
  return EncodeCut(text.substr(begin), 0, scratch, ids);
}

absl::Status Tokenizer::EncodeCut(absl::string_view text, size_t step, Scratch& scratch,
                                  std::vector<TokenId>* ids) const {
  if (text.empty()) return absl::OkStatus();
  if (step == patterns_.size()) {
    bpe_.Encode(text, scratch.bpe, ids);
    return absl::OkStatus();
  }
  std::string prefixed;
  if (spec_.splits[step].prefix_space && text[0] != ' ') {
    prefixed = absl::StrCat(" ", text);
    text = prefixed;
  }
  if (spec_.splits[step].regex.empty()) return EncodeCut(text, step + 1, scratch, ids);
  if (step + 1 == patterns_.size()) {
    return patterns_[step].Split(text, scratch.split, [&](absl::string_view word) {
      bpe_.Encode(word, scratch.bpe, ids);
      return absl::OkStatus();
    });
  }
  return patterns_[step].Split(
      text, scratch.split, [&](absl::string_view piece) { return EncodeCut(piece, step + 1, scratch, ids); });
}

std::string Tokenizer::Decode(absl::Span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!skip_special || !IsSpecial(id)) absl::StrAppend(&bytes, TokenBytes(id));
  }
  return bytes;
}

}  // namespace ridge::worker
