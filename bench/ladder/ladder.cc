#include "bench/ladder/ladder.h"

#include <algorithm>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/measure/device_name.h"
#include "bench/measure/source_text.h"
#include "common/status.h"
#include "nlohmann/json.hpp"
#include "worker/backend/simulated/card.h"

namespace ridge::bench {
namespace {

constexpr int32_t kArrivalsMaxBatch = 32;  // the slots of the series' engines

// Requests that need so many tokens decide the context where no flag has.
absl::Status SetContext(int32_t longest, LadderConfig* config) {
  int32_t& context = config->host.max_context;
  if (context == 0) context = longest;
  if (context >= longest) return absl::OkStatus();
  return InvalidField("--max_context",
                      absl::StrCat(context, " tokens are less than the longest request's ", longest));
}

std::string ParamsOf(const LadderConfig& config, const EngineHost& host) {
  nlohmann::ordered_json params = nlohmann::ordered_json::object();
  const worker::PolicyNames& choices = config.choices;
  const std::pair<const char*, const std::string*> names[] = {{"memory", &choices.memory},
                                                              {"admission", &choices.admission},
                                                              {"prefill", &choices.prefill},
                                                              {"step", &choices.step},
                                                              {"launch", &choices.launch},
                                                              {"decode_attention", &choices.decode_attention},
                                                              {"prefix_cache", &choices.prefix_cache}};
  for (const auto& [name, value] : names) {
    if (!value->empty()) params[name] = *value;
  }
  if (config.host.threads > 0) params["threads"] = config.host.threads;
  if (absl::StartsWith(config.host.device, worker::kSimulatedPrefix)) {
    params["virtual_clock"] = host.is_virtual();
  }
  if (config.host.kv_cache_bytes.has_value()) params["kv_cache_bytes"] = *config.host.kv_cache_bytes;
  // Those that follow from others come last.
  params.update({{"max_batch", config.host.max_batch},
                 {"chunk_tokens", config.host.chunk_tokens},
                 {"max_context", config.host.max_context},
                 {"step_tokens", host.step_tokens()},
                 {"kv_blocks", host.num_blocks()}});
  return params.dump();
}

// Runs `experiment` on each engine in turn. `fits` says whether the requests fit the model's context.
absl::Status ForEachEngine(const LadderConfig& config, std::ostream& progress,
                           const std::function<absl::Status(int32_t context_tokens)>& fits,
                           const std::function<absl::Status(const Subject&)>& experiment) {
  if (config.out.empty()) return InvalidField("--out", "required");
  const absl::StatusOr<std::unique_ptr<OpenedModel>> model = OpenedModel::Open(config.host);
  if (!model.ok()) return model.status();
  if (absl::Status status = fits((*model)->served().context_length); !status.ok()) return status;
  const absl::StatusOr<std::string> source = ReadSource(config.source_file);
  if (!source.ok()) return source.status();
  Prompts prompts = (*model)->MakePrompts(*source);
  const std::string bench_id = ShortId();
  for (const std::string& engine : config.engines) {
    worker::PolicyNames names = config.choices;
    names.engine = engine;
    const absl::StatusOr<std::unique_ptr<EngineHost>> host = EngineHost::Open(config.host, names, **model);
    if (!host.ok()) return host.status();
    const std::string device_name = (*host)->info().device;
    if (absl::Status status = CheckDevice(config.expect_device, device_name); !status.ok()) return status;
    progress << "engine " << engine << " on " << device_name << ", loaded in " << (*host)->load_s() << " s"
             << std::endl;
    const RunContext context{.bench_id = bench_id,
                             .version = RIDGE_VERSION,
                             .commit = config.commit,
                             .engine = engine,
                             .engine_params = ParamsOf(config, **host),
                             .model = (*model)->served().name,
                             .dtype = "float16",
                             .device = config.host.device,
                             .device_name = device_name,
                             .load_s = (*host)->load_s()};
    absl::StatusOr<RecordFiles> records = RecordFiles::Open(absl::StrCat(config.out, "/", engine), context);
    if (!records.ok()) return records.status();
    progress << records->mended();
    const Subject subject{.target = (*host)->target(),
                          .prompts = &prompts,
                          .records = &*records,
                          .max_batch = config.host.max_batch,
                          .peak_memory = [&] { return (*host)->TakePeakBytes(); },
                          .peak_memory_source = "weights and held KV blocks",
                          .work = [&] { return (*host)->TakeWork(); },
                          .progress = &progress,
                          .on_terminal = config.on_terminal && !(*host)->is_virtual()};
    if (absl::Status status = experiment(subject); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Closed(LadderConfig config, const ClosedFlags& flags, std::ostream& progress) {
  size_t largest = 0;
  int32_t longest = 0;
  for (const Workload& workload : flags.workloads) {
    largest = std::max(largest, workload.items.size());
    longest = std::max(longest, LongestOf(workload));
  }
  if (config.host.max_batch == 0) config.host.max_batch = static_cast<int32_t>(largest);
  const bool sets_context = config.host.max_context == 0;
  if (absl::Status status = SetContext(longest, &config); !status.ok()) return status;
  const auto fits = [&](int32_t context_tokens) -> absl::Status {
    for (const Workload& workload : flags.workloads) {
      if (!sets_context || LongestOf(workload) <= context_tokens) continue;
      return InvalidField(absl::StartsWith(workload.name, "mixed") ? "--mixed" : "--prompts",
                          absl::StrCat(workload.name, " has a request of ", LongestOf(workload),
                                       " tokens, more than the model's context of ", context_tokens));
    }
    return absl::OkStatus();
  };
  return ForEachEngine(config, progress, fits, [&](const Subject& subject) {
    return RunClosed(subject,
                     {flags.workloads, flags.warmups, flags.runs, flags.most_seconds, flags.largest_warmed});
  });
}

absl::Status ArrivalSweep(LadderConfig config, const PassFlags& flags, std::ostream& progress) {
  if (config.host.max_batch == 0) config.host.max_batch = kArrivalsMaxBatch;
  const bool sets_context = config.host.max_context == 0;
  if (absl::Status status = SetContext(LongestOf(flags.pass.workload), &config); !status.ok()) return status;
  const auto fits = [&](int32_t context_tokens) {
    return sets_context ? CheckContext(flags, context_tokens) : absl::OkStatus();
  };
  return ForEachEngine(config, progress, fits,
                       [&](const Subject& subject) { return RunPasses(subject, flags); });
}

}  // namespace ridge::bench
