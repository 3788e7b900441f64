// The prompts behind a workload's labels, as token ids. A prompt of a given length is the same in every run
// with the same model, so that engines can be compared token for token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "bench/workload/workload.h"
#include "worker/backend/sampling_params.h"
#include "worker/text/tokenizer.h"

namespace ridge::bench {

struct Prompt {
  std::vector<worker::TokenId> ids;
  std::string text;  // tokenised again it gives exactly `ids`; empty where the model has no tokenizer
};

// The beginning of `source` that the tokenizer cuts into exactly `tokens` tokens. INVALID_ARGUMENT where
// there is none.
absl::StatusOr<Prompt> CutPrompt(const worker::Tokenizer& tokenizer, absl::string_view source,
                                 int32_t tokens);

// Made-up ids below `vocab_size`: those of block number `block` (of any length) at `offset` onwards.
void AppendMadeUpIds(int64_t block, int32_t tokens, int32_t vocab_size, std::vector<worker::TokenId>* ids);

// Prompts by workload item; each length is cut once. Not thread-safe.
class Prompts {
 public:
  // `tokenizer` may be null: then all ids are made up. It and `source` outlive this.
  Prompts(const worker::Tokenizer* tokenizer, absl::string_view source, int32_t vocab_size)
      : tokenizer_(tokenizer), source_(source), vocab_size_(vocab_size) {}

  // Items with prefix blocks get made-up ids that follow from the names of the blocks; others the beginning
  // of the source.
  absl::StatusOr<Prompt> For(const WorkItem& item);

 private:
  const worker::Tokenizer* const tokenizer_;
  const absl::string_view source_;
  const int32_t vocab_size_;
  absl::flat_hash_map<int32_t, Prompt> by_length_;
};

}  // namespace ridge::bench
