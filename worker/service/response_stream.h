// Turns what a sequence generates into the messages of its stream: text, bytes, times, and the summary that
// the last message carries. Tokens that are added before a message is taken share it.
//
// One thread at a time. The model outlives it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "ridge/v1/inference.pb.h"
#include "worker/decision/sequence.h"
#include "worker/service/request.h"
#include "worker/service/served_model.h"
#include "worker/text/text_stream.h"

namespace ridge::worker {

class ResponseStream {
 public:
  ResponseStream(const ResolvedCall& call, const ServedModel* model, int64_t arrival_ns);

  // False where the token completed a stop string: nothing may be added after it.
  bool AddToken(const TokenEvent& token);

  // The end of a sequence that ended well (outcome.status is OK); after its last token.
  void End(const Outcome& outcome);

  bool HasMessage() const { return !tokens_.empty() || summary_.has_value(); }
  // Requires HasMessage(). The last message after End has the summary.
  v1::GenerateResponse TakeMessage();

 private:
  v1::ChoiceSummary SummariseChoice(const Outcome& outcome) const;

  const ServedModel* const model_;
  const std::string client_request_id_;
  const std::vector<TokenId> stop_ids_;
  const std::vector<std::string> stops_;
  const bool return_text_;
  const bool return_ids_;
  const bool logprobs_;
  const uint64_t seed_;
  const int32_t prompt_tokens_;
  const int64_t arrival_ns_;

  std::optional<TextStream> text_;  // where somebody needs the text
  std::deque<v1::Token> tokens_;    // not taken yet
  std::optional<v1::Summary> summary_;
  uint64_t messages_ = 0;
  int32_t generated_ = 0;
  int64_t first_token_ns_ = 0;
  int64_t last_token_ns_ = 0;
  int32_t matched_stop_ = -1;       // index of the stop string
  std::optional<TokenId> stop_id_;  // the stop token that ended the choice
};

}  // namespace ridge::worker
