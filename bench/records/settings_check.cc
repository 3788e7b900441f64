#include "bench/records/settings_check.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

using nlohmann::ordered_json;

// A JSON object; empty where the text is none, as the parameters of a peer may be.
ordered_json ObjectOf(const std::string& text) {
  ordered_json object = ordered_json::parse(text, nullptr, false);
  return object.is_object() ? object : ordered_json::object();
}

std::string SettingText(const ordered_json& settings, const std::string& flag) {
  return settings.contains(flag) ? settings[flag].dump() : "the default";
}

absl::Status Differs(const std::string& flag, const std::string& what, const std::string& there,
                     const std::string& here) {
  return absl::FailedPreconditionError(absl::StrCat("--", flag, ": ", what, " was measured with ", there,
                                                    ", this run has ", here, "; take another --out"));
}

absl::Status CheckSetting(const std::string& what, const std::string& flag, const ordered_json& there,
                          const ordered_json& here) {
  const bool equal =
      there.contains(flag) == here.contains(flag) && (!here.contains(flag) || there[flag] == here[flag]);
  if (equal) return absl::OkStatus();
  return Differs(flag, what, SettingText(there, flag), SettingText(here, flag));
}

}  // namespace

absl::Status CheckWorkloadSettings(const std::string& what, const std::string& there,
                                   const ordered_json& here) {
  const ordered_json recorded = ObjectOf(there);
  absl::Status status;
  for (const auto& [flag, value] : here.items()) {
    if (recorded.contains(flag)) status.Update(CheckSetting(what, flag, recorded, here));
  }
  return status;
}

absl::Status CheckEngineParams(const std::string& what, const std::string& there, const std::string& here) {
  const ordered_json recorded = ObjectOf(there), ours = ObjectOf(here);
  ordered_json all = ours;
  all.update(recorded);
  absl::Status status;
  for (const auto& [flag, value] : all.items()) {
    if (flag == "kv_blocks" || flag == "kv_cache_bytes") continue;
    status.Update(CheckSetting(what, flag, recorded, ours));
  }
  // A pool's size counts where it was asked for; otherwise it follows from the memory that was free.
  const bool is_sized = recorded.contains("kv_cache_bytes") || ours.contains("kv_cache_bytes");
  const std::string there_blocks = SettingText(recorded, "kv_blocks"),
                    blocks = SettingText(ours, "kv_blocks");
  if (is_sized && there_blocks != blocks) {
    status.Update(Differs("kv_cache_bytes", what, there_blocks + " blocks", absl::StrCat(blocks, " blocks")));
  }
  return status;
}

absl::Status CheckSubject(const std::string& path, const RecordedOn& there, const RunContext& context) {
  const auto quoted = [](const std::string& name) { return absl::StrCat("\"", name, "\""); };
  // Which of its names a service goes by, and what it runs on, follows from where it is.
  const bool is_service = context.device == "service";
  if (there.model != context.model) {
    return Differs(is_service ? "target" : "model", path, quoted(there.model), quoted(context.model));
  }
  if (there.device_name == context.device_name) return absl::OkStatus();
  // A processor's name has the number of threads in it.
  const absl::Status threads =
      CheckSetting(path, "threads", ObjectOf(there.engine_params), ObjectOf(context.engine_params));
  if (!threads.ok() && there.device == context.device) return threads;
  return Differs(is_service ? "target" : "device", path, quoted(there.device_name),
                 quoted(context.device_name));
}

}  // namespace ridge::bench
