// What this worker serves, as far as a request needs to know it. Filled at start-up, immutable afterwards;
// any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker/backend/sampling_params.h"
#include "worker/model/weight_source.h"
#include "worker/service/worker_config.h"
#include "worker/text/chat_template.h"
#include "worker/text/token_index.h"
#include "worker/text/tokenizer.h"

namespace ridge::worker {

struct ServedModel {
  std::string name;
  ModelConfig config;
  int32_t context_length = 0;                 // most tokens of prompt and completion together
  std::unique_ptr<Tokenizer> tokenizer;       // none: only prompt_ids are served, and no text is returned.
                                              // Otherwise it has exactly config.vocab_size tokens
  std::unique_ptr<TokenIndex> token_index;    // of the tokenizer
  int64_t longest_token_bytes = 0;            // of the tokenizer; 0: not known
  std::optional<ChatTemplate> chat_template;  // only with a tokenizer
  std::string why_no_chat;          // what is wrong with the model's own template; empty: it has none
  SamplingParams default_sampling;  // what absent fields stand for; its seed has no meaning

  // Known once the backend is made.
  std::string numerics_id;
  std::string device;
  int64_t kv_capacity_tokens = 0;
  bool extended_sampling = false;
  int32_t max_batch = 1;  // sequences that run at once
};

// Before the model is opened: opening a pipe, for instance, would wait for ever.
absl::Status CheckModelPath(const WorkerConfig& config);

// More bytes of text than this cannot fit the context, whatever they are.
int64_t MostPromptBytes(const ServedModel& model);

// All but what the backend knows; context_length is that of the model and of --max_context, and what ends a
// generation is what model, tokenizer and chat template name. Errors name the flag. What a model lacks (a
// tokenizer, a known chat template, its control tokens) is logged and left out; what it has and is broken, is
// an error.
absl::StatusOr<ServedModel> LoadServedModel(const WorkerConfig& config, const WeightSource& source);

}  // namespace ridge::worker
