// How a request's input becomes token ids, the same for Generate and Tokenize. Pure functions.
//
// Errors are INVALID_ARGUMENT with the field's name, NOT_FOUND for another model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/repeated_field.h"
#include "ridge/v1/inference.pb.h"
#include "worker/service/served_model.h"

namespace ridge::worker {

// The fields that say how text is read; absent where the request leaves the default.
struct InputOptions {
  // Of the text: more is refused before it is tokenised, which takes time; and what sets the limit, in words.
  int64_t max_bytes = INT64_MAX;
  absl::string_view max_bytes_of;
  std::optional<bool> add_special_tokens;
  std::optional<bool> add_generation_prompt;
  std::optional<bool> parse_special_tokens;
};

template <typename Request>
InputOptions InputOptionsOf(const Request& request) {
  InputOptions options;
  if (request.has_add_special_tokens()) options.add_special_tokens = request.add_special_tokens();
  if (request.has_add_generation_prompt()) options.add_generation_prompt = request.add_generation_prompt();
  if (request.has_parse_special_tokens()) options.parse_special_tokens = request.parse_special_tokens();
  return options;
}

// Empty means whatever is served.
absl::Status CheckModelName(const std::string& name, const ServedModel& model);

// Each in [0, vocab_size).
absl::Status CheckTokenIds(absl::string_view field, const google::protobuf::RepeatedField<int32_t>& ids,
                           int32_t vocab_size);

// The three kinds of input. The ids are never empty.
absl::StatusOr<std::vector<TokenId>> EncodeText(const std::string& prompt, const InputOptions& options,
                                                const ServedModel& model);
absl::StatusOr<std::vector<TokenId>> EncodeIds(const v1::TokenIds& prompt_ids, const InputOptions& options,
                                               const ServedModel& model);
absl::StatusOr<std::vector<TokenId>> EncodeChat(const v1::Chat& chat, const InputOptions& options,
                                                const ServedModel& model);

}  // namespace ridge::worker
