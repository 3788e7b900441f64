// Cuts a text by a regular expression (PCRE2, compiled to machine code). Work is bounded: a match by a count
// of steps, a text by processor time, so that an expression that does not suit a text is an error, never a
// hang.
//
// Immutable after Compile: any thread. What a match needs besides is in a SplitScratch, one a thread.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/text/tokenizer_spec.h"

namespace ridge::worker {

// What matching writes to. Movable; one thread at a time.
class SplitScratch {
 public:
  SplitScratch();

  // Before each text: sets its bounds, which grow with its size.
  void Begin(size_t text_bytes);

 private:
  friend class SplitPattern;
  // Whether the text may go on; looks at the clock where asked, and now and then.
  bool WithinTime(bool look);
  struct Free {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
    void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
  };
  std::unique_ptr<pcre2_match_data, Free> match_;
  std::unique_ptr<pcre2_jit_stack, Free> stack_;
  std::unique_ptr<pcre2_match_context, Free> context_;
  int64_t deadline_ns_ = INT64_MAX;  // of this thread's processor time
  uint32_t matches_ = 0;
};

class SplitPattern {
 public:
  // UNIMPLEMENTED for an expression that cannot be translated, INVALID_ARGUMENT for a wrong one.
  static absl::StatusOr<SplitPattern> Compile(const SplitStep& step);

  // Calls take(piece) for each piece in order; none is empty. Requires valid UTF-8. INVALID_ARGUMENT where
  // the expression asks for too much work on this text. `take` returns a status; the first error ends it.
  template <typename Take>
  absl::Status Split(absl::string_view text, SplitScratch& scratch, const Take& take) const {
    Pieces pieces(text, *this);
    size_t gap = 0;     // begins after the match before
    size_t search = 0;  // where to look for the next match
    Match match;
    absl::Status status;
    while (status.ok() && (status = Find(text, search, scratch, &match)).ok() && match.found) {
      if (match.begin == match.end && match.end == gap && gap > 0) {
        // A match of nothing right behind the one before is none.
        search = NextCharacter(text, search);
        continue;
      }
      status = pieces.Add(gap, match.begin, false, take);
      if (status.ok()) status = pieces.Add(match.begin, match.end, true, take);
      gap = search = match.end;
      if (match.begin == match.end) search = NextCharacter(text, search);
    }
    if (status.ok()) status = pieces.Add(gap, text.size(), false, take);
    if (status.ok()) status = pieces.End(take);
    return status;
  }

 private:
  struct Match {
    bool found;
    size_t begin;
    size_t end;
  };

  // Matches and gaps, made to pieces.
  class Pieces {
   public:
    Pieces(absl::string_view text, const SplitPattern& pattern)
        : text_(text), behavior_(pattern.behavior_), invert_(pattern.invert_) {}

    template <typename Take>
    absl::Status Add(size_t begin, size_t end, bool is_match, const Take& take) {
      if (begin == end) return absl::OkStatus();
      is_match = is_match != invert_;
      if (behavior_ == SplitStep::Behavior::kIsolated) return take(text_.substr(begin, end - begin));
      return AddMerged(begin, end, is_match, take);
    }

    template <typename Take>
    absl::Status End(const Take& take) {
      return begin_ == end_ ? absl::OkStatus() : take(text_.substr(begin_, end_ - begin_));
    }

   private:
    template <typename Take>
    absl::Status AddMerged(size_t begin, size_t end, bool is_match, const Take& take) {
      absl::Status status;
      if (!Joins(is_match)) {
        status = End(take);
        begin_ = begin;
      }
      end_ = end;
      if (behavior_ == SplitStep::Behavior::kRemoved && is_match) begin_ = end_;
      was_match_ = is_match;
      return status;
    }

    // Whether what comes goes to the piece that waits.
    bool Joins(bool is_match) const {
      switch (behavior_) {
        case SplitStep::Behavior::kMergedWithPrevious:
          return is_match && !was_match_;
        case SplitStep::Behavior::kMergedWithNext:
          return !is_match && was_match_;
        case SplitStep::Behavior::kContiguous:
          return is_match == was_match_;
        default:
          return false;
      }
    }

    const absl::string_view text_;
    const SplitStep::Behavior behavior_;
    const bool invert_;
    size_t begin_ = 0;  // of the piece that waits
    size_t end_ = 0;
    bool was_match_ = false;
  };

  struct FreeCode {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };

  absl::Status Find(absl::string_view text, size_t from, SplitScratch& scratch, Match* match) const;
  static size_t NextCharacter(absl::string_view text, size_t at);

  std::unique_ptr<pcre2_code, FreeCode> code_;
  bool has_machine_code_ = false;
  SplitStep::Behavior behavior_ = SplitStep::Behavior::kIsolated;
  bool invert_ = false;
};

}  // namespace ridge::worker
