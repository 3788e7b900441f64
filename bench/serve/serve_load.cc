#include "bench/serve/serve_load.h"

#include "absl/strings/str_cat.h"
#include "bench/measure/device_name.h"
#include "bench/measure/grpc_target.h"
#include "bench/measure/source_text.h"
#include "common/status.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

// Of what runs there it is known only which way the requests went.
std::string ParamsOf(const ServeLoadConfig& config, GrpcTarget& target) {
  std::string through = config.through;
  if (through.empty()) through = target.IsWorker() ? "a worker" : "a service";
  return nlohmann::ordered_json{{"through", through}}.dump(-1, ' ', false,
                                                           nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

absl::Status ServeLoad(const ServeLoadConfig& config, const PassFlags& flags, std::ostream& progress) {
  GrpcTarget target({config.target, config.connections, config.request_timeout, config.model});
  const absl::StatusOr<v1::GetModelResponse> model = target.GetModel();
  if (!model.ok()) {
    return absl::Status(model.status().code(),
                        absl::StrCat("--target: ", config.target, ": ", model.status().message()));
  }
  if (absl::Status status = CheckDevice(config.expect_device, model->device()); !status.ok()) return status;
  if (model->context_length() > 0) {  // or it would cut what it is asked for
    if (absl::Status status = CheckContext(flags, model->context_length()); !status.ok()) return status;
  }
  const absl::StatusOr<std::string> source = ReadSource(config.source_file);
  if (!source.ok()) return source.status();
  EncodeText encode;
  if (model->has_tokenizer()) encode = [&](absl::string_view text) { return target.Encode(text); };
  Prompts prompts(std::move(encode), *source, model->vocab_size());
  const RunContext context{.bench_id = ShortId(),
                           .version = model->version(),
                           .commit = config.commit,
                           .engine = config.engine,
                           .engine_params = ParamsOf(config, target),
                           .model = model->name(),
                           .dtype = "float16",
                           .device = "service",
                           .device_name = model->device(),
                           .load_s = 0};
  absl::StatusOr<RecordFiles> records =
      RecordFiles::Open(absl::StrCat(config.out, "/", config.engine), context);
  if (!records.ok()) return records.status();
  progress << records->mended();
  const Subject subject{&target, &prompts, &*records, 0, {}, "", {}, &progress, config.on_terminal};
  progress << model->name() << " on " << model->device() << " at " << config.target << std::endl;
  return RunPasses(subject, flags);
}

}  // namespace ridge::bench
