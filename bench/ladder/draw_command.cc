#include "bench/ladder/draw_command.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "bench/flags/shared_flags.h"
#include "bench/ladder/engine_host.h"
#include "bench/measure/pass_flags.h"
#include "bench/measure/source_text.h"
#include "bench/workload/draw.h"
#include "common/status.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

absl::Status WritePrompts(const Workload& workload, const std::string& path) {
  HostConfig config;
  config.model = absl::GetFlag(FLAGS_model);
  const absl::StatusOr<std::unique_ptr<OpenedModel>> model = OpenedModel::Open(config);
  if (!model.ok()) return model.status();
  const absl::StatusOr<std::string> source = ReadSource(absl::GetFlag(FLAGS_source));
  if (!source.ok()) return source.status();
  Prompts prompts = (*model)->MakePrompts(*source);
  nlohmann::ordered_json by_label = nlohmann::ordered_json::object();
  for (const WorkItem& item : workload.items) {
    if (!item.prefix_blocks.empty())
      return InvalidField("--model", "prompts of a trace have no labels of their own");
    if (by_label.contains(item.label)) continue;
    absl::StatusOr<Prompt> prompt = prompts.For(item);
    if (!prompt.ok()) return prompt.status();
    by_label[item.label] = {{"ids", std::move(prompt->ids)}, {"text", std::move(prompt->text)}};
  }
  const absl::Status status = WriteText(path, by_label.dump() + "\n");
  return status.ok() ? status : InvalidField("--out", status.message());
}

}  // namespace

absl::Status Draw() {
  absl::StatusOr<PassFlags> flags = PassFlagsFromFlags();
  if (!flags.ok()) return flags.status();
  if (flags->rates.size() > 1) {
    return InvalidField("--rates",
                        "a workload is drawn at one rate; give one, and --last_rate where it changes");
  }
  Workload& workload = flags->pass.workload;
  if (!flags->rates.empty()) {
    const double first = flags->rates.front(),
                 last = flags->pass.last_rate > 0 ? flags->pass.last_rate : first;
    SetArrivals({first, last, flags->pass.burstiness, flags->pass.seed}, &workload);
  }
  const std::string out = absl::GetFlag(FLAGS_out);
  if (out.empty()) return InvalidField("--out", "required: the file to write");
  const absl::Status status = WriteWorkload(workload, out);
  if (!status.ok()) return InvalidField("--out", status.message());
  if (absl::GetFlag(FLAGS_model).empty()) return status;
  return WritePrompts(workload, absl::StrCat(out, ".prompts.json"));
}

}  // namespace ridge::bench
