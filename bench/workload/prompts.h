// The prompts behind a workload's labels, as token ids. A prompt of a given length is the same in every run
// with the same model, so that engines can be compared token for token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "bench/workload/workload.h"
#include "worker/backend/sampling_params.h"
#include "worker/text/tokenizer.h"

namespace ridge::bench {

struct Prompt {
  std::vector<worker::TokenId> ids;
  std::string text;  // tokenised again it gives exactly `ids`; empty where ids are made up
};

// A text as a tokenizer has it, without special tokens around it.
struct Encoded {
  std::vector<worker::TokenId> ids;
  std::vector<int32_t> sizes;  // bytes of each token
};
// In this process, or that of a service.
using EncodeText = std::function<absl::StatusOr<Encoded>(absl::string_view text)>;

// `tokenizer` outlives what is returned.
EncodeText EncodeWith(const worker::Tokenizer* tokenizer);

// The beginning of `source` that has exactly `tokens` tokens. INVALID_ARGUMENT "--source: ..." where there is
// none.
absl::StatusOr<Prompt> CutPrompt(const EncodeText& encode, absl::string_view source, int32_t tokens);

// Made-up ids below `vocab_size` that follow from `block` alone: a short block is the beginning of a long
// one.
void AppendMadeUpIds(int64_t block, int32_t tokens, int32_t vocab_size, std::vector<worker::TokenId>* ids);

// Prompts by workload item; each length is cut once. Not thread-safe.
class Prompts {
 public:
  // Without `encode` all ids are made up.
  Prompts(EncodeText encode, std::string source, int32_t vocab_size)
      : encode_(std::move(encode)), source_(std::move(source)), vocab_size_(vocab_size) {}

  // Items with prefix blocks get made-up ids that follow from the names of the blocks; others the beginning
  // of the source.
  absl::StatusOr<Prompt> For(const WorkItem& item);

 private:
  const EncodeText encode_;
  const std::string source_;
  const int32_t vocab_size_;
  absl::flat_hash_map<int32_t, Prompt> by_length_;
};

}  // namespace ridge::bench
