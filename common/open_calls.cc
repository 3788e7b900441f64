#include "common/open_calls.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace ridge {
namespace {

constexpr absl::Duration kTimeToSaySo = absl::Seconds(1);

}  // namespace

bool OpenCalls::Enter(OpenCall* call) {
  absl::MutexLock lock(&mutex_);
  RIDGE_CHECK(calls_.insert(call).second);
  return !draining_;
}

void OpenCalls::Leave(OpenCall* call) {
  absl::MutexLock lock(&mutex_);
  RIDGE_CHECK(calls_.erase(call) == 1);
}

int OpenCalls::count() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(calls_.size());
}

int OpenCalls::Drain(absl::Duration timeout, absl::string_view who) {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  if (mutex_.AwaitWithTimeout(absl::Condition(this, &OpenCalls::None), timeout)) return 0;
  const int cut = static_cast<int>(calls_.size());
  const absl::Status status = absl::UnavailableError(
      absl::StrCat(who, ": the stream was still open after ", absl::FormatDuration(timeout)));
  for (OpenCall* call : calls_) call->Cut(status);
  mutex_.AwaitWithTimeout(absl::Condition(this, &OpenCalls::None), kTimeToSaySo);
  return cut;
}

}  // namespace ridge
