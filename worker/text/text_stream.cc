#include "worker/text/text_stream.h"

namespace ridge::worker {

TextStream::TextStream(const Tokenizer* tokenizer, const TextOptions& options)
    : tokenizer_(tokenizer),
      skip_special_(options.skip_special),
      include_stop_(options.include_stop),
      unmatched_tokens_(options.min_tokens),
      matcher_(options.stops, options.include_stop) {}

TextStream::Delta TextStream::Push(TokenId id, bool is_last, bool is_stop_token) {
  std::string text;
  const bool silent = (skip_special_ && tokenizer_->IsSpecial(id)) || (is_stop_token && !include_stop_);
  if (!silent) text = detokenizer_.Push(tokenizer_->TokenBytes(id));
  if (is_last) text += detokenizer_.Flush();
  if (unmatched_tokens_ > 0) {
    --unmatched_tokens_;
    return {std::move(text)};
  }
  StopMatcher::Result result = matcher_.Push(text);
  if (is_last && result.matched < 0) result.text += matcher_.Flush();
  return {std::move(result.text), result.matched};
}

}  // namespace ridge::worker
