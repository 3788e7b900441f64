#include "bench/ladder/probe_commands.h"

#include <algorithm>
#include <cmath>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/flags/shared_flags.h"
#include "bench/ladder/backend_probe.h"
#include "bench/ladder/output_files.h"
#include "bench/measure/device_name.h"
#include "bench/measure/source_text.h"
#include "bench/workload/draw.h"
#include "common/status.h"
#include "worker/backend/simulated/card.h"

ABSL_DECLARE_FLAG(std::string, a);
ABSL_DECLARE_FLAG(std::string, b);

namespace ridge::bench {
namespace {

constexpr int32_t kContexts[] = {1, 256, 4096};
constexpr int kWarmups = 10;
constexpr int kRepetitions = 50;

// A model on a device, for probing.
struct Probed {
  std::unique_ptr<OpenedModel> model;
  std::unique_ptr<EngineHost> host;
};

absl::StatusOr<Probed> OpenForProbe(const LadderConfig& config, const std::string& engine) {
  HostConfig one = config.host;
  one.max_batch = 1;
  absl::StatusOr<std::unique_ptr<OpenedModel>> model = OpenedModel::Open(one);
  if (!model.ok()) return model.status();
  worker::PolicyNames names = config.choices;
  names.engine = engine;
  absl::StatusOr<std::unique_ptr<EngineHost>> host = EngineHost::Open(one, names, **model);
  if (!host.ok()) return host.status();
  return Probed{*std::move(model), *std::move(host)};
}

// How far apart the model's logits for the two tokens are where the outputs part.
absl::StatusOr<std::string> LogitGap(const LadderConfig& config, const Output& a, const Output& b,
                                     int32_t at) {
  if (at >= static_cast<int32_t>(std::min(a.ids.size(), b.ids.size())))
    return std::string("one of them ends there");
  if (absl::StartsWith(config.host.device, worker::kSimulatedPrefix))
    return std::string("simulated devices have no logits to compare");
  const absl::StatusOr<std::string> source = ReadSource(config.source_file);
  if (!source.ok()) return source.status();
  absl::StatusOr<Probed> probed = OpenForProbe(config, config.engines.front());
  if (!probed.ok()) return probed.status();
  Prompts prompts = probed->model->MakePrompts(*source);
  absl::StatusOr<Prompt> prompt = prompts.For({PromptLabel(a.prompt_tokens), a.prompt_tokens, 1, 0, {}});
  if (!prompt.ok()) return prompt.status();
  std::vector<worker::TokenId> tokens = std::move(prompt->ids);
  tokens.insert(tokens.end(), a.ids.begin(), a.ids.begin() + at);
  const absl::StatusOr<std::vector<float>> logits = probed->host->Probe().LogitsAfter(tokens);
  if (!logits.ok()) return logits.status();
  const float of_a = (*logits)[a.ids[at]], of_b = (*logits)[b.ids[at]];
  return absl::StrFormat("logits %.6g and %.6g, %.3g apart", of_a, of_b, std::abs(of_a - of_b));
}

}  // namespace

absl::Status Overhead(const LadderConfig& config, std::ostream& out) {
  for (const std::string& engine : config.engines) {
    absl::StatusOr<Probed> probed = OpenForProbe(config, engine);
    if (!probed.ok()) return probed.status();
    const std::string device = probed->host->info().device;
    if (absl::Status status = CheckDevice(config.expect_device, device); !status.ok()) return status;
    BackendProbe probe = probed->host->Probe();
    out << absl::StrFormat("%s as %s launches, on %s%s: a pass over one token, us\n",
                           probed->model->served().name, engine, device,
                           config.commit.empty() ? "" : absl::StrCat(", commit ", config.commit))
        << "| context | pipelined | serialized | of it in Submit | sync cost | launches | Submit a launch |\n"
           "|---|---|---|---|---|---|---|\n";
    const int64_t held = int64_t{probed->host->num_blocks()} * worker::kBlockTokens;
    const int64_t most = std::min<int64_t>(probed->model->served().context_length, held);
    for (const int32_t context : kContexts) {
      if (context > most) continue;
      const absl::StatusOr<PassCost> cost = probe.MeasurePass(context, kWarmups, kRepetitions);
      if (!cost.ok()) return cost.status();
      const double launches = std::max(1.0, static_cast<double>(cost->launches));
      out << absl::StrFormat("| %d | %.1f | %.1f | %.1f | %.1f | %d | %.2f |\n", context,
                             cost->pipelined_s * 1e6, cost->serialized_s * 1e6, cost->host_s * 1e6,
                             (cost->serialized_s - cost->pipelined_s) * 1e6, cost->launches,
                             cost->host_s * 1e6 / launches);
    }
    out.flush();
  }
  return absl::OkStatus();
}

absl::Status Parity(std::ostream& out) {
  const std::string folders[] = {absl::GetFlag(FLAGS_a), absl::GetFlag(FLAGS_b)};
  absl::StatusOr<Outputs> outputs[2];
  for (int i = 0; i < 2; ++i) {
    if (folders[i].empty()) return InvalidField(i == 0 ? "--a" : "--b", "required: a folder of records");
  }
  for (int i = 0; i < 2; ++i) {
    outputs[i] = ReadOutputs(absl::StrCat(folders[i], "/runs.jsonl.gz"));
    if (!outputs[i].ok()) return InvalidField(i == 0 ? "--a" : "--b", outputs[i].status().message());
  }
  int compared = 0, different = 0;
  for (const auto& [key, a] : *outputs[0]) {
    const auto b = outputs[1]->find(key);
    if (b == outputs[1]->end()) continue;
    ++compared;
    const int32_t at = FirstDifference(a, b->second);
    if (at < 0) continue;
    ++different;
    out << absl::StrFormat("%s, sequence %d: token %d is the first that differs", key.first, key.second, at);
    if (!absl::GetFlag(FLAGS_model).empty()) {
      const absl::StatusOr<LadderConfig> config = LadderConfigFromFlags();
      if (!config.ok()) return config.status();
      const absl::StatusOr<std::string> gap = LogitGap(*config, a, b->second, at);
      if (!gap.ok()) return gap.status();
      out << ": " << *gap;
    }
    out << std::endl;
  }
  if (compared == 0) return absl::FailedPreconditionError("the two have no workload in common");
  out << compared - different << " of " << compared << " outputs are identical";
  const size_t alone[] = {outputs[0]->size() - compared, outputs[1]->size() - compared};
  if (alone[0] + alone[1] > 0) {
    out << "; without a partner, not compared: " << alone[0] << " of --a, " << alone[1] << " of --b";
  }
  out << std::endl;
  return different == 0 ? absl::OkStatus()
                        : absl::FailedPreconditionError(absl::StrCat(different, " outputs differ"));
}

}  // namespace ridge::bench
