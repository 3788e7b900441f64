// Turns what the choices of a request generate into the messages of its stream: text, bytes, times, and the
// summary that the last message carries. Tokens that are added before a message is taken share it.
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

  // Of the prompt's tokens, from the second one on; before the first token of all.
  void AddPromptLogprobs(std::vector<PromptLogprob> logprobs);

  // False where the token completed a stop string: nothing may be added to its choice after it.
  bool AddToken(const TokenEvent& token);

  // The end of a choice that ended well, after its last token.
  void EndChoice(int32_t choice, FinishReason reason);

  // The end of the request, after that of its last choice; outcome.status is OK.
  void End(const Outcome& outcome);

  bool HasMessage() const { return !tokens_.empty() || summary_.has_value(); }
  // Requires HasMessage(). The last message after End has the summary.
  v1::GenerateResponse TakeMessage();

 private:
  struct Choice {
    std::optional<TextStream> text;  // where somebody needs the text
    int32_t generated = 0;
    int32_t matched_stop = -1;       // index of the stop string that ended it
    std::optional<TokenId> stop_id;  // the stop token that ended it
    FinishReason reason = FinishReason::kStop;
  };
  struct WaitingToken {
    int32_t choice;
    v1::Token token;
  };

  // Of choice 0, whose first token comes next.
  void AddPromptTokens();
  void SetIdAndBytes(TokenId id, v1::Token* token) const;
  void SetLogprob(float logprob, const std::vector<TokenLogprob>& top, v1::Token* token) const;
  v1::ChoiceSummary SummariseChoice(int32_t index) const;

  const ServedModel* const model_;
  const std::string client_request_id_;
  const std::vector<TokenId> stop_ids_;
  const std::vector<std::string> stops_;
  const bool skip_special_;
  const bool return_text_;
  const bool return_ids_;
  const bool logprobs_;
  const uint64_t seed_;
  const int32_t prompt_tokens_;
  const int64_t arrival_ns_;

  std::vector<TokenId> prompt_;                 // to be echoed; empty once it was
  std::vector<PromptLogprob> prompt_logprobs_;  // of prompt_, from its second token on
  std::vector<Choice> choices_;
  std::deque<WaitingToken> tokens_;  // not taken yet
  std::optional<v1::Summary> summary_;
  uint64_t messages_ = 0;
  int64_t first_token_ns_ = 0;  // of any choice
  int64_t last_token_ns_ = 0;
};

}  // namespace ridge::worker
