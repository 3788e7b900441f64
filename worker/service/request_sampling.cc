#include "worker/service/request_sampling.h"

#include "absl/strings/str_cat.h"
#include "common/hash.h"
#include "common/status.h"

namespace ridge::worker {
namespace {

struct Range {
  float low;
  bool includes_low;
  float high;
};

// Not a number is in no range.
absl::Status CheckRange(absl::string_view field, float value, const Range& range) {
  const bool above = range.includes_low ? value >= range.low : value > range.low;
  if (above && value <= range.high) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(value, " is not in ", range.includes_low ? "[" : "(", range.low,
                                          ", ", range.high, "]"));
}

}  // namespace

absl::StatusOr<SamplingParams> ResolveSampling(const v1::SamplingParams& sampling, const ServedModel& model) {
  SamplingParams resolved = model.default_sampling;
  if (sampling.has_temperature()) resolved.temperature = sampling.temperature();
  if (sampling.has_top_p()) resolved.top_p = sampling.top_p();
  if (sampling.has_top_k()) resolved.top_k = sampling.top_k();
  if (sampling.has_min_p()) resolved.min_p = sampling.min_p();
  if (sampling.has_repetition_penalty()) resolved.repetition_penalty = sampling.repetition_penalty();
  if (sampling.has_presence_penalty()) resolved.presence_penalty = sampling.presence_penalty();
  if (sampling.has_frequency_penalty()) resolved.frequency_penalty = sampling.frequency_penalty();
  resolved.seed = sampling.has_seed() ? sampling.seed() : RandomUint64();

  absl::Status status = CheckRange("sampling.temperature", resolved.temperature, {0, true, 100});
  status.Update(CheckRange("sampling.top_p", resolved.top_p, {0, false, 1}));
  status.Update(CheckRange("sampling.min_p", resolved.min_p, {0, true, 1}));
  if (status.ok() && resolved.top_k < 0) {
    return InvalidField("sampling.top_k", absl::StrCat(resolved.top_k, " is negative; 0 is off"));
  }
  status.Update(CheckRange("sampling.repetition_penalty", resolved.repetition_penalty, {0, false, 10}));
  status.Update(CheckRange("sampling.presence_penalty", resolved.presence_penalty, {-2, true, 2}));
  status.Update(CheckRange("sampling.frequency_penalty", resolved.frequency_penalty, {-2, true, 2}));
  if (!status.ok()) return status;
  return resolved;
}

v1::SamplingParams SamplingToProto(const SamplingParams& sampling) {
  v1::SamplingParams proto;
  proto.set_temperature(sampling.temperature);
  proto.set_top_p(sampling.top_p);
  proto.set_top_k(sampling.top_k);
  proto.set_min_p(sampling.min_p);
  proto.set_repetition_penalty(sampling.repetition_penalty);
  proto.set_presence_penalty(sampling.presence_penalty);
  proto.set_frequency_penalty(sampling.frequency_penalty);
  return proto;
}

}  // namespace ridge::worker
