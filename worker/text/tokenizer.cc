#define PCRE2_CODE_UNIT_WIDTH 8
#include "worker/text/tokenizer.h"

#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"

namespace ridge::worker {
namespace {

// More work than this on one match means a pattern that does not suit the text.
constexpr uint32_t kMatchLimit = 10'000'000;

uint64_t PairKey(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char byte) { return static_cast<uint8_t>(byte) < 0x80; });
}

// Requires valid UTF-8.
absl::StatusOr<std::string> NormalizeNfc(absl::string_view text) {
  utf8proc_uint8_t* data = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
      &data, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (size < 0)
    return absl::InvalidArgumentError(absl::StrCat("cannot be normalised: ", utf8proc_errmsg(size)));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(data, &std::free);
  return std::string(reinterpret_cast<const char*>(data), static_cast<size_t>(size));
}

}  // namespace

// A compiled regular expression.
class Tokenizer::Pattern {
 public:
  static absl::StatusOr<std::unique_ptr<Pattern>> Compile(const std::string& source) {
    auto pattern = std::make_unique<Pattern>();
    int error = 0;
    size_t offset = 0;
    pattern->code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                       PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
    if (pattern->code_ == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("split pattern \"", source, "\": error at ", offset));
    }
    // Without a compiler for this machine the interpreter runs.
    pcre2_jit_compile(pattern->code_.get(), PCRE2_JIT_COMPLETE);
    pattern->limits_.reset(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(pattern->limits_.get(), kMatchLimit);
    return pattern;
  }

  // Calls take(piece) for each match and each gap between matches, in order.
  template <class Take>
  absl::Status Split(absl::string_view text, const Take& take) const {
    const std::unique_ptr<pcre2_match_data, FreeMatch> match(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    size_t begin = 0;
    while (begin < text.size()) {
      const int found = pcre2_match(code_.get(), subject, text.size(), begin, PCRE2_NO_UTF_CHECK, match.get(),
                                    limits_.get());
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0) return absl::InvalidArgumentError("the text is too hard to split");
      const size_t* range = pcre2_get_ovector_pointer(match.get());
      if (range[1] == range[0]) break;  // no pattern of ours matches nothing
      absl::Status status = range[0] > begin ? take(text.substr(begin, range[0] - begin)) : absl::OkStatus();
      if (status.ok()) status = take(text.substr(range[0], range[1] - range[0]));
      if (!status.ok()) return status;
      begin = range[1];
    }
    return begin < text.size() ? take(text.substr(begin)) : absl::OkStatus();
  }

 private:
  struct FreeCode {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  struct FreeLimits {
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  };
  struct FreeMatch {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };

  std::unique_ptr<pcre2_code, FreeCode> code_;
  std::unique_ptr<pcre2_match_context, FreeLimits> limits_;
};

Tokenizer::Tokenizer(TokenizerSpec spec) : spec_(std::move(spec)) {
  byte_ids_.fill(-1);
}

Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerSpec spec) {
  auto tokenizer = std::unique_ptr<Tokenizer>(new Tokenizer(std::move(spec)));
  absl::Status status = tokenizer->Build();
  if (!status.ok()) return status;
  return tokenizer;
}

absl::Status Tokenizer::Build() {
  for (TokenId id : {spec_.bos_id, spec_.eos_id}) {
    if (id < -1 || id >= vocab_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("BOS or EOS id ", id, " is not one of the ", vocab_size(), " tokens"));
    }
  }
  for (const std::string& source : spec_.split_patterns) {
    absl::StatusOr<std::unique_ptr<Pattern>> pattern = Pattern::Compile(source);
    if (!pattern.ok()) return pattern.status();
    patterns_.push_back(*std::move(pattern));
  }

  absl::flat_hash_map<absl::string_view, TokenId> ids;
  for (TokenId id = 0; id < vocab_size(); ++id) {
    const TokenizerSpec::Token& token = spec_.tokens[id];
    if (token.bytes.empty()) continue;
    if (token.kind == TokenKind::kNormal) {
      ids.emplace(token.bytes, id);
      if (token.bytes.size() == 1) byte_ids_[static_cast<uint8_t>(token.bytes[0])] = id;
    } else if (token.kind != TokenKind::kUnused) {
      if (!added_.emplace(token.bytes, id).second) continue;
      std::vector<size_t>& sizes = added_sizes_[static_cast<uint8_t>(token.bytes[0])];
      if (std::find(sizes.begin(), sizes.end(), token.bytes.size()) == sizes.end()) {
        sizes.push_back(token.bytes.size());
      }
    }
  }
  for (std::vector<size_t>& sizes : added_sizes_) std::sort(sizes.begin(), sizes.end(), std::greater<>());

  for (size_t rank = 0; rank < spec_.merges.size(); ++rank) {
    const auto& [left, right] = spec_.merges[rank];
    const auto left_id = ids.find(left), right_id = ids.find(right), merged_id = ids.find(left + right);
    if (left_id == ids.end() || right_id == ids.end() || merged_id == ids.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", rank, " uses a piece that is not in the vocabulary"));
    }
    merges_.emplace(PairKey(left_id->second, right_id->second),
                    Merge{static_cast<int32_t>(rank), merged_id->second});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(absl::string_view text, EncodeOptions options) const {
  if (!IsValidUtf8(text)) return absl::InvalidArgumentError("not valid UTF-8");
  std::vector<TokenId> ids;
  if (options.add_special_tokens && spec_.add_bos && spec_.bos_id >= 0) ids.push_back(spec_.bos_id);
  size_t begin = 0;  // of the plain text that was not encoded yet
  for (size_t i = 0; i < text.size();) {
    const TokenId added = MatchAdded(text.substr(i), options.parse_special);
    if (added < 0) {
      ++i;
      continue;
    }
    absl::Status status = EncodePlain(text.substr(begin, i - begin), &ids);
    if (!status.ok()) return status;
    ids.push_back(added);
    begin = i += spec_.tokens[added].bytes.size();
  }
  absl::Status status = EncodePlain(text.substr(begin), &ids);
  if (!status.ok()) return status;
  if (options.add_special_tokens && spec_.add_eos && spec_.eos_id >= 0) ids.push_back(spec_.eos_id);
  return ids;
}

TokenId Tokenizer::MatchAdded(absl::string_view text, bool parse_special) const {
  for (size_t size : added_sizes_[static_cast<uint8_t>(text[0])]) {
    if (size > text.size()) continue;
    const auto added = added_.find(text.substr(0, size));
    if (added != added_.end() && (parse_special || !IsSpecial(added->second))) return added->second;
  }
  return -1;
}

absl::Status Tokenizer::EncodePlain(absl::string_view text, std::vector<TokenId>* ids) const {
  if (text.empty()) return absl::OkStatus();
  if (!spec_.normalize_nfc || IsAscii(text)) return EncodeCut(text, 0, ids);
  absl::StatusOr<std::string> normalized = NormalizeNfc(text);
  if (!normalized.ok()) return normalized.status();
  return EncodeCut(*normalized, 0, ids);
}

absl::Status Tokenizer::EncodeCut(absl::string_view text, size_t pattern, std::vector<TokenId>* ids) const {
  if (pattern == patterns_.size()) {
    EncodeWord(text, ids);
    return absl::OkStatus();
  }
  return patterns_[pattern]->Split(
      text, [&](absl::string_view piece) { return EncodeCut(piece, pattern + 1, ids); });
}

void Tokenizer::EncodeWord(absl::string_view word, std::vector<TokenId>* ids) const {
  // Symbols are a linked list over an array; a merge keeps the left one and unlinks the right one.
  struct Symbol {
    TokenId id;
    int32_t previous;
    int32_t next;
  };
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (char byte : word) {
    const TokenId id = byte_ids_[static_cast<uint8_t>(byte)];
    const auto index = static_cast<int32_t>(symbols.size());
    if (id >= 0) symbols.push_back({id, index - 1, index + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  // Candidates, the lowest rank and then the leftmost first: rank and left symbol in one word. One is stale
  // where the pair that begins at its symbol has another rank by now, which the table says.
  const auto merge_at = [&](int32_t left) -> const Merge* {
    if (left < 0 || symbols[left].id < 0 || symbols[left].next < 0) return nullptr;
    const auto merge = merges_.find(PairKey(symbols[left].id, symbols[symbols[left].next].id));
    return merge == merges_.end() ? nullptr : &merge->second;
  };
  const auto key_of = [](int32_t rank, int32_t left) {
    return uint64_t{static_cast<uint32_t>(rank)} << 32 | static_cast<uint32_t>(left);
  };
  std::vector<uint64_t> heap;
  heap.reserve(symbols.size());
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    const auto left = static_cast<int32_t>(i);
    if (const Merge* merge = merge_at(left)) heap.push_back(key_of(merge->rank, left));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto consider = [&](int32_t left) {
    const Merge* merge = merge_at(left);
    if (merge == nullptr) return;
    heap.push_back(key_of(merge->rank, left));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t candidate = heap.back();
    heap.pop_back();
    const auto at = static_cast<int32_t>(candidate & 0xFFFFFFFF);
    const Merge* merge = merge_at(at);
    if (merge == nullptr || key_of(merge->rank, at) != candidate) continue;
    Symbol& left = symbols[at];
    Symbol& right = symbols[left.next];
    left.id = merge->merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = at;
    consider(left.previous);
    consider(at);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids->push_back(symbols[i].id);
}

std::string Tokenizer::Decode(absl::Span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (TokenId id : ids) {
    if (!skip_special || !IsSpecial(id)) absl::StrAppend(&bytes, TokenBytes(id));
  }
  return bytes;
}

}  // namespace ridge::worker
