#include "bench/roofline_command.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/flags/shared_flags.h"
#include "bench/ladder/engine_host.h"
#include "bench/measure/device_name.h"
#include "bench/records/csv.h"
#include "bench/records/gzip_file.h"
#include "bench/records/latency.h"
#include "bench/roofline/model_page.h"
#include "bench/workload/workload.h"
#include "common/status.h"

ABSL_DECLARE_FLAG(std::string, card);
ABSL_DECLARE_FLAG(std::vector<std::string>, records);

namespace ridge::bench {
namespace {

absl::Status Write(const std::string& path, const std::string& text) {
  const absl::Status status = WriteText(path, text);
  return status.ok() ? status : InvalidField("--out", status.message());
}

struct Samples {
  int64_t batch = 0, prompt_tokens = 0, new_tokens = 0;
  std::map<int64_t, double> last_ttft_s;  // by run: of the sequence that had its first token last
  std::vector<double> itl_s;
};

}  // namespace

absl::StatusOr<std::vector<Measured>> MeasuredRuns(const std::string& path, const std::string& model,
                                                   const std::string& card) {
  const absl::StatusOr<std::string> text = ReadGzip(path);
  if (!text.ok()) return InvalidField("--records", text.status().message());
  absl::string_view rest = *text;
  const std::vector<std::string> names = TakeCsvRecord(&rest);
  std::map<std::string, size_t> columns;
  for (size_t i = 0; i < names.size(); ++i) columns[names[i]] = i;
  for (const char* name : {"engine", "model", "device_name", "workload", "is_warmup", "run_index",
                           "batch_size", "prompt_tokens", "max_new_tokens", "ttft_s", "itl_p50_ms"}) {
    if (!columns.contains(name))
      return InvalidField("--records", absl::StrCat(path, ": no column \"", name, "\""));
  }
  std::map<std::tuple<std::string, int64_t, int64_t, std::string>, Samples> groups;
  while (!rest.empty()) {
    const std::vector<std::string> fields = TakeCsvRecord(&rest);
    if (fields.size() != names.size())
      return InvalidField("--records", absl::StrCat(path, ": a line breaks off"));
    const auto field = [&](const char* name) { return fields[columns[name]]; };
    if (field("model") != model) {
      return InvalidField("--records", absl::StrCat(path, ": of ", field("model"), ", not of ", model));
    }
    if (!NamesDevice(field("device_name"), card)) {
      return InvalidField("--records", absl::StrCat(path, ": on ", field("device_name"), ", not on ", card));
    }
    double ttft_s = 0, itl_ms = 0;
    int64_t run_index = 0;
    Samples run;
    if (!absl::SimpleAtod(field("ttft_s"), &ttft_s) || !absl::SimpleAtod(field("itl_p50_ms"), &itl_ms) ||
        !absl::SimpleAtoi(field("run_index"), &run_index) ||
        !absl::SimpleAtoi(field("batch_size"), &run.batch) ||
        !absl::SimpleAtoi(field("prompt_tokens"), &run.prompt_tokens) ||
        !absl::SimpleAtoi(field("max_new_tokens"), &run.new_tokens)) {
      return InvalidField("--records", absl::StrCat(path, ": a figure is not a number"));
    }
    if (field("is_warmup") == "True" || absl::StartsWith(field("workload"), "mixed")) continue;
    Samples& group =
        groups.try_emplace({field("engine"), run.prompt_tokens, run.batch, field("workload")}, run)
            .first->second;
    double& last_s = group.last_ttft_s[run_index];
    last_s = std::max(last_s, ttft_s);
    group.itl_s.push_back(itl_ms * 1e-3);
  }
  std::vector<Measured> measured;
  for (const auto& [key, group] : groups) {
    std::vector<double> ttft_s;
    for (const auto& [run_index, last_s] : group.last_ttft_s) ttft_s.push_back(last_s);
    measured.push_back({absl::StrCat(std::get<0>(key), ", ", std::get<3>(key)), group.batch,
                        group.prompt_tokens, group.new_tokens, Percentile(ttft_s, 50),
                        Percentile(group.itl_s, 50)});
  }
  return measured;
}

absl::Status Roofline() {
  const std::string out = absl::GetFlag(FLAGS_out), name = absl::GetFlag(FLAGS_model);
  if (name.empty()) return InvalidField("--model", "required");
  if (out.empty()) return InvalidField("--out", "required");
  const absl::StatusOr<DataSheet> card = FindDataSheet(absl::GetFlag(FLAGS_card));
  if (!card.ok()) return InvalidField("--card", card.status().message());
  HostConfig host;
  host.model = name;
  const absl::StatusOr<std::unique_ptr<OpenedModel>> model = OpenedModel::Open(host);
  if (!model.ok()) return model.status();
  const worker::ModelConfig& config = (*model)->source().config();
  std::vector<Measured> measured;
  for (const std::string& path : absl::GetFlag(FLAGS_records)) {
    const absl::StatusOr<std::vector<Measured>> runs =
        MeasuredRuns(path, (*model)->served().name, card->name);
    if (!runs.ok()) return runs.status();
    measured.insert(measured.end(), runs->begin(), runs->end());
  }
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) return InvalidField("--out", absl::StrCat(out, ": ", error.message()));
  absl::Status status = Write(out + "/hardware.md", HardwarePage(config, *card, measured));
  status.Update(Write(out + "/model.html", ModelPage(config, *card)));
  return status;
}

}  // namespace ridge::bench
