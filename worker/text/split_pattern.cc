#include "worker/text/split_pattern.h"

#include <algorithm>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "worker/text/split_regex.h"

namespace ridge::worker {
namespace {

// Steps of one match. Expressions in use need at most one or two for each character of a run.
constexpr uint32_t kMatchLimit = 100'000, kMatchLimitPerByte = 8;
constexpr uint32_t kMaxMatchLimit = 1u << 30;
constexpr uint32_t kHeapLimitKib = 16 << 10;
constexpr size_t kStackBytes = 32 << 10, kMaxStackBytes = 1 << 20;
// Of processor time for one text: some hundred times what expressions in use take.
constexpr int64_t kTimeLimitNs = 3'000'000'000, kTimeLimitPerByteNs = 5'000;
constexpr uint32_t kMatchesBetweenLooks = 64;
constexpr size_t kPositionsAtOnce = 256;

constexpr uint32_t kOptions =
    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;

int64_t ThreadTimeNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

bool IsInsideCharacter(char byte) {
  return (static_cast<uint8_t>(byte) & 0xC0) == 0x80;
}

}  // namespace

SplitScratch::SplitScratch()
    : match_(pcre2_match_data_create(1, nullptr)),
      stack_(pcre2_jit_stack_create(kStackBytes, kMaxStackBytes, nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
  RIDGE_CHECK(match_ != nullptr && context_ != nullptr);
  pcre2_set_heap_limit(context_.get(), kHeapLimitKib);
  pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
}

void SplitScratch::Begin(size_t text_bytes) {
  const uint64_t limit = kMatchLimit + kMatchLimitPerByte * uint64_t{text_bytes};
  pcre2_set_match_limit(context_.get(), static_cast<uint32_t>(std::min<uint64_t>(limit, kMaxMatchLimit)));
  deadline_ns_ = ThreadTimeNs() + kTimeLimitNs + kTimeLimitPerByteNs * static_cast<int64_t>(text_bytes);
}

bool SplitScratch::WithinTime(bool look) {
  return (!look && ++matches_ % kMatchesBetweenLooks != 0) || ThreadTimeNs() < deadline_ns_;
}

absl::StatusOr<SplitPattern> SplitPattern::Compile(const SplitStep& step) {
  absl::StatusOr<std::string> regex = SplitRegexForPcre2(step.regex);
  if (!regex.ok()) return regex.status();
  SplitPattern pattern;
  int error = 0;
  size_t offset = 0;
  pattern.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex->data()), regex->size(), kOptions,
                                    &error, &offset, nullptr));
  if (pattern.code_ == nullptr) {
    PCRE2_UCHAR message[120] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return absl::InvalidArgumentError(
        absl::StrCat("not a regular expression: ", reinterpret_cast<const char*>(message)));
  }
  // Without a compiler for this machine the interpreter runs.
  pattern.has_machine_code_ = pcre2_jit_compile(pattern.code_.get(), PCRE2_JIT_COMPLETE) == 0;
  pattern.behavior_ = step.behavior;
  pattern.invert_ = step.invert;
  return pattern;
}

absl::Status SplitPattern::Find(absl::string_view text, size_t from, SplitScratch& scratch,
                                Match* match) const {
  match->found = false;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto find = has_machine_code_ ? pcre2_jit_match : pcre2_match;
  // The limit of steps holds for each position where a match may begin, so that few are tried at once.
  while (from <= text.size()) {
    size_t last = std::min(from + kPositionsAtOnce, text.size());
    while (last < text.size() && IsInsideCharacter(text[last])) ++last;
    pcre2_set_offset_limit(scratch.context_.get(), last);
    const int found = find(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, scratch.match_.get(),
                           scratch.context_.get());
    const bool is_none = found == PCRE2_ERROR_NOMATCH;
    if ((found < 0 && !is_none) || !scratch.WithinTime(is_none)) {
      return absl::InvalidArgumentError("the text is too hard to split");
    }
    if (!is_none) {
      const size_t* range = pcre2_get_ovector_pointer(scratch.match_.get());
      *match = {true, range[0], range[1]};
      return absl::OkStatus();
    }
    if (last == text.size()) return absl::OkStatus();
    from = NextCharacter(text, last);
  }
  return absl::OkStatus();
}

size_t SplitPattern::NextCharacter(absl::string_view text, size_t at) {
  ++at;
  while (at < text.size() && IsInsideCharacter(text[at])) ++at;
  return at;
}

}  // namespace ridge::worker
