#include "worker/text/detokenizer.h"

#include "absl/strings/str_cat.h"
#include "common/utf8.h"

namespace ridge::worker {

std::string IncrementalDetokenizer::Push(absl::string_view bytes) {
  absl::StrAppend(&pending_, bytes);
  const size_t held = IncompleteUtf8Suffix(pending_);
  const absl::string_view complete = absl::string_view(pending_).substr(0, pending_.size() - held);
  std::string text = IsValidUtf8(complete) ? std::string(complete) : ReplaceInvalidUtf8(complete);
  pending_.erase(0, pending_.size() - held);
  return text;
}

std::string IncrementalDetokenizer::Flush() {
  std::string text = ReplaceInvalidUtf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace ridge::worker
