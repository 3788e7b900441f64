#include "bench/ladder/ladder_config.h"

#include <algorithm>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "bench/flags/shared_flags.h"
#include "bench/workload/draw.h"
#include "common/flags.h"
#include "common/status.h"

ABSL_FLAG(std::vector<std::string>, engine, {"ridge"}, "engine presets, one after the other");
ABSL_FLAG(std::string, device, "auto", "as ridge-worker's --device");
ABSL_FLAG(std::string, expect_device, "", "fail unless the device's name contains this");
ABSL_FLAG(int, threads, 0, "compute threads; 0: one a core");
ABSL_FLAG(std::string, kv_cache_bytes, "0", "KV memory; 0: what the device has beside the weights");
ABSL_FLAG(int, max_batch, 0, "sequences that run at once; 0: the largest batch, 32 for arrivals");
ABSL_FLAG(int, step_tokens, 0, "most rows of one step; 0: as chunk_tokens and max_batch need");
ABSL_FLAG(int, chunk_tokens, 512, "most prompt rows of one sequence in a step, where prompts are cut");
ABSL_FLAG(int, max_context, 0, "most tokens of prompt and completion; 0: what the requests need");
ABSL_FLAG(std::string, memory, "", "replaces the presets' choice, as ridge-worker's flag does");
ABSL_FLAG(std::string, admission, "", "likewise");
ABSL_FLAG(std::string, prefill, "", "likewise");
ABSL_FLAG(std::string, step, "", "likewise");
ABSL_FLAG(std::string, decode_attention, "", "likewise");
ABSL_FLAG(std::string, launch, "", "likewise");
ABSL_FLAG(std::string, prefix_cache, "off", "likewise; off unless it is what is measured");
ABSL_FLAG(bool, virtual_clock, true, "simulated devices: no time passes");
ABSL_FLAG(std::string, source, "bench/traces/prompt_source.txt", "text whose beginnings are the prompts");
ABSL_FLAG(std::string, commit, "", "recorded with each run");

ABSL_FLAG(std::vector<std::string>, prompts, {"p16"}, "closed: prompt lengths, as p16,p64");
ABSL_FLAG(std::vector<std::string>, batch_size, {"1"}, "closed: copies that are handed over together");
ABSL_FLAG(std::vector<std::string>, mixed, {},
          "closed: sizes of mixed draws, besides or instead of --prompts none");
ABSL_FLAG(int, runs, 5, "closed: recorded runs of each size");
ABSL_FLAG(int, warmup, 2, "closed: runs before them, recorded as such");
ABSL_FLAG(int, new_tokens, 256, "closed: tokens to generate, but for mixed draws");

ABSL_FLAG(std::vector<std::string>, rates, {"1"}, "arrivals: offered requests a second");
ABSL_FLAG(int, requests, 400, "arrivals: of the mixed draw");
ABSL_FLAG(double, burstiness, 1, "arrivals: 1 is a Poisson process, less comes in bursts");
ABSL_FLAG(uint64_t, draw_seed, 0, "seed of mixed draws and arrivals");
ABSL_FLAG(double, least_served, 0,
          "arrivals: stop after the first rate of which less than this share is served");
ABSL_FLAG(int, stop_above, 0,
          "arrivals: stop sending where more requests than this are unanswered; 0: never");

namespace ridge::bench {
namespace {

constexpr int kMostRequests = 1'000'000;
constexpr int kMostTokens = 1 << 20;

absl::StatusOr<int32_t> ParseCount(absl::string_view flag, absl::string_view text, int most) {
  int32_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > most) {
    return InvalidField(flag, absl::StrCat("\"", text, "\" is not a number from 1 to ", most));
  }
  return value;
}

absl::StatusOr<std::vector<int32_t>> ParseCounts(absl::string_view flag,
                                                 const std::vector<std::string>& texts,
                                                 absl::string_view prefix, int most) {
  std::vector<int32_t> values;
  for (const std::string& text : texts) {
    absl::StatusOr<int32_t> value = ParseCount(flag, absl::StripPrefix(text, prefix), most);
    if (!value.ok()) return value.status();
    values.push_back(*value);
  }
  return values;
}

absl::Status CheckAtLeast(absl::string_view flag, double value, double least) {
  if (value >= least) return absl::OkStatus();
  return InvalidField(flag, absl::StrCat(value, " is less than ", least));
}

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
  const absl::StatusOr<int64_t> kv_bytes = ParseBytes("kv_cache_bytes", absl::GetFlag(FLAGS_kv_cache_bytes));
  if (!kv_bytes.ok()) return kv_bytes.status();
  config.host.kv_cache_bytes = *kv_bytes;

  if (config.host.model.empty()) return InvalidField("--model", "required");
  if (config.out.empty()) return InvalidField("--out", "required");
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
  ClosedFlags flags{{}, absl::GetFlag(FLAGS_warmup), absl::GetFlag(FLAGS_runs)};
  absl::Status status = CheckAtLeast("--new_tokens", new_tokens, 1);
  status.Update(CheckAtLeast("--warmup", flags.warmups, 0));
  status.Update(CheckAtLeast("--runs", flags.runs, 1));
  if (!status.ok()) return status;
  for (const int32_t length : *lengths) {
    for (const int32_t size : *sizes) flags.workloads.push_back(UniformDraw(length, new_tokens, size));
  }
  for (const int32_t size : *mixed)
    flags.workloads.push_back(MixedDraw(absl::GetFlag(FLAGS_draw_seed), size));
  if (flags.workloads.empty()) return InvalidField("--prompts", "none, and no --mixed either");
  return flags;
}

absl::StatusOr<ArrivalsFlags> ArrivalsFlagsFromFlags() {
  ArrivalsFlags flags;
  const absl::StatusOr<int32_t> requests =
      ParseCount("--requests", absl::StrCat(absl::GetFlag(FLAGS_requests)), kMostRequests);
  if (!requests.ok()) return requests.status();
  for (const std::string& text : absl::GetFlag(FLAGS_rates)) {
    double rate = 0;
    if (!absl::SimpleAtod(text, &rate) || !(rate > 0) || rate > 1e6) {
      return InvalidField("--rates", absl::StrCat("\"", text, "\" is not a rate above 0 and up to 1e6"));
    }
    flags.rates.push_back(rate);
  }
  flags.pass.seed = absl::GetFlag(FLAGS_draw_seed);
  flags.pass.burstiness = absl::GetFlag(FLAGS_burstiness);
  flags.least_served_share = absl::GetFlag(FLAGS_least_served);
  flags.pass.stop_above = absl::GetFlag(FLAGS_stop_above);
  if (!(flags.pass.burstiness > 0)) return InvalidField("--burstiness", "must be more than 0");
  absl::Status status = CheckAtLeast("--least_served", flags.least_served_share, 0);
  status.Update(CheckAtLeast("--stop_above", flags.pass.stop_above, 0));
  if (!status.ok()) return status;
  flags.pass.workload = MixedDraw(flags.pass.seed, *requests);
  return flags;
}

}  // namespace ridge::bench
