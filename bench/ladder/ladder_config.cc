#include "bench/ladder/ladder_config.h"

#include <algorithm>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "bench/flags/shared_flags.h"
#include "bench/measure/pass_flags.h"
#include "bench/workload/draw.h"
#include "common/flags.h"
#include "common/status.h"

ABSL_FLAG(std::vector<std::string>, engine, {"ridge"}, "engine presets, one after the other");
ABSL_FLAG(std::string, device, "auto", "as ridge-worker's --device");
ABSL_FLAG(int, threads, 0, "compute threads; 0: one a core");
ABSL_FLAG(std::string, kv_cache_bytes, "auto",
          "most KV memory; no more is taken than max_batch x context needs; auto: what a card has left, 1GiB "
          "elsewhere");
ABSL_FLAG(int, max_batch, 0, "sequences that run at once; 0: the largest batch, 32 for arrivals");
ABSL_FLAG(int, step_tokens, 0, "most rows of one step; 0: as chunks, or whole prompts, and max_batch need");
ABSL_FLAG(int, chunk_tokens, 512, "most prompt rows of one sequence in a step, where prompts are cut");
ABSL_FLAG(int, max_context, 0, "most tokens of prompt and completion; 0: what the requests need");
ABSL_FLAG(std::string, memory, "", "replaces the presets' choice of memory, as ridge-worker's flag does");
ABSL_FLAG(std::string, admission, "",
          "replaces the presets' choice of admission, as ridge-worker's flag does");
ABSL_FLAG(std::string, prefill, "", "replaces the presets' choice of prefill, as ridge-worker's flag does");
ABSL_FLAG(std::string, step, "", "replaces the presets' choice of steps, as ridge-worker's flag does");
ABSL_FLAG(std::string, decode_attention, "",
          "replaces the presets' choice of attention, as ridge-worker's flag does");
ABSL_FLAG(std::string, launch, "", "replaces the presets' choice of launching, as ridge-worker's flag does");
ABSL_FLAG(std::string, prefix_cache, "off",
          "on, off, or empty: the presets' choice; off unless it is measured");
ABSL_FLAG(bool, virtual_clock, true, "simulated devices: no time passes");

ABSL_FLAG(std::vector<std::string>, prompts, {"p16"}, "closed: prompt lengths, as p16,p64");
ABSL_FLAG(std::vector<std::string>, batch_size, {"1"}, "closed: copies that are handed over together");
ABSL_FLAG(std::vector<std::string>, mixed, {},
          "closed: sizes of mixed draws, besides or instead of --prompts none");
ABSL_FLAG(int, runs, 5, "closed: recorded runs of each size");
ABSL_FLAG(int, warmup, 2, "closed: runs before them, recorded as such");
ABSL_FLAG(absl::Duration, most_time, absl::ZeroDuration(),
          "closed: fewer runs of a workload where they take longer than this together; 0: all");
ABSL_FLAG(int, largest_warmed, 0,
          "closed: larger batches have no warm-ups, those before them were enough; 0: all have");
ABSL_FLAG(int, new_tokens, 256, "closed: tokens to generate, but for mixed draws");
ABSL_FLAG(std::string, a, "", "parity: folder of an engine's records");
ABSL_FLAG(std::string, b, "", "parity: the folder to compare it with");
ABSL_DECLARE_FLAG(uint64_t, draw_seed);

namespace ridge::bench {
namespace {

constexpr int kMostRequests = 1'000'000;
constexpr int kMostTokens = 1 << 20;

}  // namespace

absl::StatusOr<LadderConfig> LadderConfigFromFlags() {
  LadderConfig config;
  config.host.model = absl::GetFlag(FLAGS_model);
  config.host.device = absl::GetFlag(FLAGS_device);
  config.host.threads = absl::GetFlag(FLAGS_threads);
  config.host.max_batch = absl::GetFlag(FLAGS_max_batch);
  config.host.step_tokens = absl::GetFlag(FLAGS_step_tokens);
  config.host.chunk_tokens = absl::GetFlag(FLAGS_chunk_tokens);
  config.host.max_context = absl::GetFlag(FLAGS_max_context);
  config.host.virtual_clock = absl::GetFlag(FLAGS_virtual_clock);
  config.engines = absl::GetFlag(FLAGS_engine);
  config.choices = {.memory = absl::GetFlag(FLAGS_memory),
                    .admission = absl::GetFlag(FLAGS_admission),
                    .prefill = absl::GetFlag(FLAGS_prefill),
                    .step = absl::GetFlag(FLAGS_step),
                    .decode_attention = absl::GetFlag(FLAGS_decode_attention),
                    .launch = absl::GetFlag(FLAGS_launch),
                    .prefix_cache = absl::GetFlag(FLAGS_prefix_cache)};
  config.out = absl::GetFlag(FLAGS_out);
  config.source_file = absl::GetFlag(FLAGS_source);
  config.expect_device = absl::GetFlag(FLAGS_expect_device);
  config.commit = absl::GetFlag(FLAGS_commit);
  if (const std::string text = absl::GetFlag(FLAGS_kv_cache_bytes); text != "auto") {
    const absl::StatusOr<int64_t> kv_bytes = ParseBytes("kv_cache_bytes", text);
    if (!kv_bytes.ok()) return kv_bytes.status();
    config.host.kv_cache_bytes = *kv_bytes;
  }

  if (config.host.model.empty()) return InvalidField("--model", "required");
  absl::Status status = CheckAtLeast("--threads", config.host.threads, 0);
  status.Update(CheckAtLeast("--max_batch", config.host.max_batch, 0));
  status.Update(CheckAtLeast("--step_tokens", config.host.step_tokens, 0));
  status.Update(CheckAtLeast("--chunk_tokens", config.host.chunk_tokens, 1));
  status.Update(CheckAtLeast("--max_context", config.host.max_context, 0));
  for (const std::string& engine : config.engines) {
    worker::PolicyNames names = config.choices;
    names.engine = engine;
    status.Update(worker::PolicyOf(names).status());
  }
  if (!status.ok()) return status;
  return config;
}

absl::StatusOr<ClosedFlags> ClosedFlagsFromFlags() {
  const std::vector<std::string> prompts = absl::GetFlag(FLAGS_prompts);
  const bool uniform = prompts != std::vector<std::string>{"none"};
  absl::StatusOr<std::vector<int32_t>> lengths =
      ParseCounts("--prompts", uniform ? prompts : std::vector<std::string>{}, "p", kMostTokens);
  if (!lengths.ok()) return lengths.status();
  absl::StatusOr<std::vector<int32_t>> sizes =
      ParseCounts("--batch_size", absl::GetFlag(FLAGS_batch_size), "", kMostRequests);
  if (!sizes.ok()) return sizes.status();
  absl::StatusOr<std::vector<int32_t>> mixed =
      ParseCounts("--mixed", absl::GetFlag(FLAGS_mixed), "", kMostRequests);
  if (!mixed.ok()) return mixed.status();
  const int new_tokens = absl::GetFlag(FLAGS_new_tokens);
  ClosedFlags flags{{},
                    absl::GetFlag(FLAGS_warmup),
                    absl::GetFlag(FLAGS_runs),
                    absl::ToDoubleSeconds(absl::GetFlag(FLAGS_most_time)),
                    absl::GetFlag(FLAGS_largest_warmed)};
  absl::Status status = CheckAtLeast("--new_tokens", new_tokens, 1);
  status.Update(CheckAtLeast("--warmup", flags.warmups, 0));
  status.Update(CheckAtLeast("--runs", flags.runs, 1));
  status.Update(CheckAtLeast("--most_time", flags.most_seconds, 0));
  status.Update(CheckAtLeast("--largest_warmed", flags.largest_warmed, 0));
  if (!status.ok()) return status;
  for (const int32_t length : *lengths) {
    for (const int32_t size : *sizes) flags.workloads.push_back(UniformDraw(length, new_tokens, size));
  }
  for (const int32_t size : *mixed)
    flags.workloads.push_back(MixedDraw(absl::GetFlag(FLAGS_draw_seed), size));
  if (flags.workloads.empty()) return InvalidField("--prompts", "none, and no --mixed either");
  return flags;
}

}  // namespace ridge::bench
