#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "bench/ask.h"
#include "bench/flags/shared_flags.h"
#include "common/status.h"
#include "common/utf8.h"

ABSL_FLAG(absl::Duration, timeout, absl::Seconds(60), "limit of the whole request");
ABSL_FLAG(std::string, prompt, "", "text to continue");
ABSL_FLAG(std::string, chat, "", "message of a user to answer");
ABSL_FLAG(std::string, system, "", "system message in front of --chat");
ABSL_FLAG(std::vector<std::string>, prompt_ids, {}, "token ids to continue, as 1,2,3");
ABSL_FLAG(int, max_tokens, 256, "most tokens to generate");
ABSL_FLAG(absl::optional<float>, temperature, absl::nullopt, "0 is greedy; default: the server's");
ABSL_FLAG(absl::optional<float>, top_p, absl::nullopt, "default: the server's");
ABSL_FLAG(absl::optional<int32_t>, top_k, absl::nullopt, "default: the server's");
ABSL_FLAG(absl::optional<float>, min_p, absl::nullopt, "default: the server's");
ABSL_FLAG(absl::optional<uint64_t>, seed, absl::nullopt, "default: drawn by the server");
ABSL_FLAG(std::string, stop, "", "stop strings, separated by commas; \\, is a comma, \\\\ a backslash");
ABSL_FLAG(bool, ignore_eos, false, "go on at the end of sequence");

namespace ridge::bench {
namespace {

absl::Status SetInput(v1::GenerateRequest* request) {
  const std::string prompt = absl::GetFlag(FLAGS_prompt), chat = absl::GetFlag(FLAGS_chat);
  const std::string system = absl::GetFlag(FLAGS_system);
  const std::vector<std::string> ids = absl::GetFlag(FLAGS_prompt_ids);
  if ((prompt.empty() ? 0 : 1) + (chat.empty() ? 0 : 1) + (ids.empty() ? 0 : 1) != 1) {
    return absl::InvalidArgumentError("exactly one of --prompt, --chat and --prompt_ids is required");
  }
  if (!system.empty() && chat.empty()) return InvalidField("--system", "needs --chat");
  if (!prompt.empty()) request->set_prompt(prompt);
  if (!chat.empty()) {
    const auto add = [request](const char* role, const std::string& content) {
      v1::ChatMessage& message = *request->mutable_chat()->add_messages();
      message.set_role(role);
      message.set_content(content);
    };
    if (!system.empty()) add("system", system);
    add("user", chat);
  }
  for (const std::string& text : ids) {
    int32_t id;
    if (!absl::SimpleAtoi(text, &id))
      return InvalidField("--prompt_ids", absl::StrCat("\"", text, "\" is no number"));
    request->mutable_prompt_ids()->add_ids(id);
  }
  return absl::OkStatus();
}

// "a,b\,c" is "a" and "b,c".
absl::Status SetStops(absl::string_view list, v1::GenerateRequest* request) {
  if (list.empty()) return absl::OkStatus();
  std::vector<std::string> stops(1);
  for (size_t i = 0; i < list.size(); ++i) {
    const char next = i + 1 < list.size() ? list[i + 1] : '\0';
    if (list[i] == '\\' && (next == ',' || next == '\\')) {
      stops.back() += list[++i];
    } else if (list[i] == ',') {
      stops.emplace_back();
    } else {
      stops.back() += list[i];
    }
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) {
      return InvalidField("--stop",
                          absl::StrCat("\"", list, "\" has an empty string; a comma in one is \\,"));
    }
    request->add_stop(stop);
  }
  return absl::OkStatus();
}

// The library would send other text, and complain on stderr in words of its own.
absl::Status CheckUtf8() {
  const std::pair<const char*, std::string> texts[] = {{"--model", absl::GetFlag(FLAGS_model)},
                                                       {"--prompt", absl::GetFlag(FLAGS_prompt)},
                                                       {"--chat", absl::GetFlag(FLAGS_chat)},
                                                       {"--system", absl::GetFlag(FLAGS_system)},
                                                       {"--stop", absl::GetFlag(FLAGS_stop)}};
  for (const auto& [flag, text] : texts) {
    if (!IsValidUtf8(text)) return InvalidField(flag, "not valid UTF-8");
  }
  return absl::OkStatus();
}

void SetSampling(v1::SamplingParams* sampling) {
  // What is not given stays unset: the server's default applies, and the server checks the rest.
  if (const auto value = absl::GetFlag(FLAGS_temperature)) sampling->set_temperature(*value);
  if (const auto value = absl::GetFlag(FLAGS_top_p)) sampling->set_top_p(*value);
  if (const auto value = absl::GetFlag(FLAGS_top_k)) sampling->set_top_k(*value);
  if (const auto value = absl::GetFlag(FLAGS_min_p)) sampling->set_min_p(*value);
  if (const auto value = absl::GetFlag(FLAGS_seed)) sampling->set_seed(*value);
}

}  // namespace

absl::StatusOr<AskConfig> AskConfigFromFlags() {
  AskConfig config;
  config.target = absl::GetFlag(FLAGS_target);
  config.timeout = absl::GetFlag(FLAGS_timeout);
  if (config.timeout <= absl::ZeroDuration()) return InvalidField("--timeout", "must be positive");
  if (absl::Status status = CheckUtf8(); !status.ok()) return status;
  v1::GenerateRequest& request = config.request;
  request.set_model(absl::GetFlag(FLAGS_model));
  if (absl::Status status = SetInput(&request); !status.ok()) return status;
  SetSampling(request.mutable_sampling());
  request.set_max_tokens(absl::GetFlag(FLAGS_max_tokens));
  if (absl::Status status = SetStops(absl::GetFlag(FLAGS_stop), &request); !status.ok()) return status;
  request.set_ignore_eos(absl::GetFlag(FLAGS_ignore_eos));
  return config;
}

}  // namespace ridge::bench
