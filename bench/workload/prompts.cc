#include "bench/workload/prompts.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/utf8.h"
#include "kernels/philox.h"

namespace ridge::bench {
namespace {

using worker::TokenId;

// How far from a token's end a cut is looked for where the text up to it is tokenised otherwise.
constexpr int64_t kSearchBytes = 64;

// The block whose ids stand for the source text of a model without a tokenizer.
constexpr int64_t kSourceBlock = 0;

}  // namespace

EncodeText EncodeWith(const worker::Tokenizer* tokenizer) {
  return [tokenizer](absl::string_view text) -> absl::StatusOr<Encoded> {
    absl::StatusOr<std::vector<TokenId>> ids = tokenizer->Encode(text, {});
    if (!ids.ok()) return ids.status();
    Encoded encoded{*std::move(ids), {}};
    for (const TokenId id : encoded.ids)
      encoded.sizes.push_back(static_cast<int32_t>(tokenizer->TokenBytes(id).size()));
    return encoded;
  };
}

absl::StatusOr<Prompt> CutPrompt(const EncodeText& encode, absl::string_view source, int32_t tokens) {
  const absl::StatusOr<Encoded> all = encode(source);
  if (!all.ok()) return all.status();
  if (static_cast<int64_t>(all->ids.size()) < tokens) {
    return InvalidField("--source", absl::StrCat("the text has ", all->ids.size(), " tokens, a prompt of ",
                                                 tokens, " is asked for; give a longer one"));
  }
  const int64_t size = std::accumulate(all->sizes.begin(), all->sizes.begin() + tokens, int64_t{0});
  for (int64_t distance = 0; distance <= kSearchBytes; ++distance) {
    for (const int64_t end : {size + distance, size - distance}) {
      if (end < 1 || end > static_cast<int64_t>(source.size())) continue;
      const absl::string_view text = source.substr(0, end);
      if (!IsValidUtf8(text)) continue;
      absl::StatusOr<Encoded> cut = encode(text);
      if (!cut.ok()) return cut.status();
      if (static_cast<int64_t>(cut->ids.size()) == tokens)
        return Prompt{std::move(cut->ids), std::string(text)};
    }
  }
  return InvalidField("--source", absl::StrCat("no beginning of the text has exactly ", tokens, " tokens"));
}

void AppendMadeUpIds(int64_t block, int32_t tokens, int32_t vocab_size, std::vector<TokenId>* ids) {
  for (int32_t i = 0; i < tokens; ++i) {
    const auto words = kernels::Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, static_cast<uint64_t>(block));
    // The upper half of word x vocab_size: a number below vocab_size.
    ids->push_back(static_cast<TokenId>((uint64_t{words[0]} * static_cast<uint64_t>(vocab_size)) >> 32));
  }
}

absl::StatusOr<Prompt> Prompts::For(const WorkItem& item) {
  if (!item.prefix_blocks.empty()) {
    Prompt prompt;
    for (size_t i = 0; i < item.prefix_blocks.size(); ++i) {
      const int32_t left = item.prompt_tokens - static_cast<int32_t>(prompt.ids.size());
      const bool last = i + 1 == item.prefix_blocks.size();
      AppendMadeUpIds(item.prefix_blocks[i], last ? left : std::min(left, kPrefixBlockTokens), vocab_size_,
                      &prompt.ids);
    }
    return prompt;
  }
  if (const auto found = by_length_.find(item.prompt_tokens); found != by_length_.end()) return found->second;
  Prompt prompt;
  if (encode_ == nullptr) {
    AppendMadeUpIds(kSourceBlock, item.prompt_tokens, vocab_size_, &prompt.ids);
  } else {
    absl::StatusOr<Prompt> cut = CutPrompt(encode_, source_, item.prompt_tokens);
    if (!cut.ok()) return cut.status();
    prompt = *std::move(cut);
  }
  by_length_.emplace(item.prompt_tokens, prompt);
  return prompt;
}

}  // namespace ridge::bench
