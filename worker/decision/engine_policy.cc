#include "worker/decision/engine_policy.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"

namespace ridge::worker {
namespace {

using Memory = MemoryPolicy;
using Admission = AdmissionPolicy;
using Prefill = PrefillPolicy;
using Step = StepPolicy;
using Attention = AttentionPolicy;
using Launch = LaunchPolicy;

struct Preset {
  const char* name;
  EnginePolicy policy;
};

constexpr Preset kPresets[] = {
    {"naive",
     {Memory::kScratch, Admission::kOne, Prefill::kWhole, Step::kSeparate, Attention::kOnePass,
      Launch::kStream, false}},
    {"cached",
     {Memory::kContiguous, Admission::kOne, Prefill::kWhole, Step::kSeparate, Attention::kOnePass,
      Launch::kStream, false}},
    {"batched",
     {Memory::kPadded, Admission::kBatch, Prefill::kPadded, Step::kSeparate, Attention::kOnePass,
      Launch::kStream, false}},
    {"continuous",
     {Memory::kSlots, Admission::kContinuous, Prefill::kPadded, Step::kSeparate, Attention::kOnePass,
      Launch::kStream, false}},
    {"paged",
     {Memory::kReserved, Admission::kContinuous, Prefill::kPadded, Step::kSeparate, Attention::kOnePass,
      Launch::kStream, false}},
    {"chunked",
     {Memory::kReserved, Admission::kContinuous, Prefill::kChunked, Step::kSeparate, Attention::kOnePass,
      Launch::kStream, false}},
    {"fused",
     {Memory::kReserved, Admission::kContinuous, Prefill::kChunked, Step::kFused, Attention::kOnePass,
      Launch::kStream, false}},
    {"flash",
     {Memory::kReserved, Admission::kContinuous, Prefill::kChunked, Step::kFused, Attention::kSplit,
      Launch::kStream, false}},
    {"ridge",
     {Memory::kOnDemand, Admission::kContinuous, Prefill::kChunked, Step::kFused, Attention::kSplit,
      Launch::kGraph, true}},
};

// Sets `choice` to the value that has this name; an empty one leaves it.
template <typename T>
absl::Status Choose(absl::string_view flag, absl::string_view name,
                    const std::vector<std::pair<absl::string_view, T>>& values, T* choice) {
  if (name.empty()) return absl::OkStatus();
  std::vector<absl::string_view> names;
  for (const auto& [value_name, value] : values) {
    names.push_back(value_name);
    if (value_name != name) continue;
    *choice = value;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": \"", name, "\" is not one of ", absl::StrJoin(names, ", ")));
}

absl::Status CheckTogether(const EnginePolicy& policy) {
  if (policy.memory == Memory::kPadded && policy.admission != Admission::kBatch) {
    return absl::InvalidArgumentError(
        "--memory: padded needs --admission batch: who joins later has no room");
  }
  if (policy.prefix_cache && policy.memory != Memory::kReserved && policy.memory != Memory::kOnDemand) {
    return absl::InvalidArgumentError("--prefix_cache: on needs --memory reserved or on_demand");
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<std::string>& PresetNames() {
  static const auto& names = *new std::vector<std::string>([] {
    std::vector<std::string> all;
    for (const Preset& preset : kPresets) all.emplace_back(preset.name);
    return all;
  }());
  return names;
}

EnginePolicy PresetPolicy(absl::string_view name) {
  const auto* preset =
      std::find_if(std::begin(kPresets), std::end(kPresets), [&](const Preset& p) { return p.name == name; });
  RIDGE_CHECK(preset != std::end(kPresets));
  return preset->policy;
}

std::string ToString(const PolicyNames& names) {
  std::string text = absl::StrCat("engine=", names.engine);
  const auto add = [&](absl::string_view name, const std::string& value) {
    if (!value.empty()) absl::StrAppend(&text, " ", name, "=", value);
  };
  add("memory", names.memory);
  add("admission", names.admission);
  add("prefill", names.prefill);
  add("step", names.step);
  add("decode_attention", names.decode_attention);
  add("launch", names.launch);
  add("prefix_cache", names.prefix_cache);
  return text;
}

absl::StatusOr<EnginePolicy> PolicyOf(const PolicyNames& names) {
  const std::vector<std::string>& presets = PresetNames();
  if (std::find(presets.begin(), presets.end(), names.engine) == presets.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--engine: \"", names.engine, "\" is not one of ", absl::StrJoin(presets, ", ")));
  }
  EnginePolicy policy = PresetPolicy(names.engine);
  absl::Status status = Choose<Memory>("--memory", names.memory,
                                       {{"scratch", Memory::kScratch},
                                        {"contiguous", Memory::kContiguous},
                                        {"padded", Memory::kPadded},
                                        {"slots", Memory::kSlots},
                                        {"reserved", Memory::kReserved},
                                        {"on_demand", Memory::kOnDemand}},
                                       &policy.memory);
  status.Update(Choose<Admission>(
      "--admission", names.admission,
      {{"one", Admission::kOne}, {"batch", Admission::kBatch}, {"continuous", Admission::kContinuous}},
      &policy.admission));
  status.Update(Choose<Prefill>(
      "--prefill", names.prefill,
      {{"whole", Prefill::kWhole}, {"padded", Prefill::kPadded}, {"chunked", Prefill::kChunked}},
      &policy.prefill));
  status.Update(Choose<Step>("--step", names.step, {{"separate", Step::kSeparate}, {"fused", Step::kFused}},
                             &policy.step));
  status.Update(Choose<Attention>("--decode_attention", names.decode_attention,
                                  {{"one_pass", Attention::kOnePass}, {"split", Attention::kSplit}},
                                  &policy.attention));
  status.Update(Choose<Launch>("--launch", names.launch,
                               {{"stream", Launch::kStream}, {"graph", Launch::kGraph}}, &policy.launch));
  status.Update(Choose<bool>("--prefix_cache", names.prefix_cache, {{"off", false}, {"on", true}},
                             &policy.prefix_cache));
  if (status.ok()) status = CheckTogether(policy);
  if (!status.ok()) return status;
  return policy;
}

}  // namespace ridge::worker
