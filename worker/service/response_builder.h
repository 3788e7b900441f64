// Tokens of one request to the messages of its stream. Knows no transport.
//
// One thread at a time. Tokens wait in the next message until it is taken, so that a slow client gets fewer,
// larger ones; what waits is bounded by max_tokens.
#pragma once

#include <cstdint>
#include <memory>

#include "ridge/v1/inference.pb.h"
#include "worker/decision/sequence.h"
#include "worker/service/request.h"
#include "worker/text/text_stream.h"

namespace ridge::worker {

class ResponseBuilder {
 public:
  // The model outlives it.
  ResponseBuilder(const ResolvedCall& call, const ServedModel* model);

  // False where the token completed a stop string.
  bool AddToken(const TokenEvent& token);
  // The successful end: the message that waits becomes the last one.
  void AddSummary(const Outcome& outcome);

  bool HasMessage() const { return message_.choices_size() > 0 || message_.has_summary(); }
  // What waits, as the next message of the stream.
  v1::GenerateResponse TakeMessage();

 private:
  void SetFinish(const Outcome& outcome, v1::ChoiceSummary* choice) const;

  const ServedModel* const model_;
  const bool return_text_;
  const bool return_ids_;
  const bool logprobs_;
  const uint64_t seed_;
  const std::string request_id_;
  const std::vector<std::string> stops_;
  const std::vector<TokenId> stop_ids_;
  const int64_t arrival_ns_;
  const int32_t prompt_tokens_;
  std::unique_ptr<TextStream> text_;  // null without a tokenizer

  v1::GenerateResponse message_;
  uint64_t next_sequence_number_ = 0;
  int32_t tokens_ = 0;
  int64_t first_token_ns_ = 0;
  int64_t last_token_ns_ = 0;
  TokenId last_id_ = -1;
  int32_t matched_stop_ = -1;
};

}  // namespace ridge::worker
