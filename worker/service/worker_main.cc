#include <cstdio>

#include "common/flags.h"
#include "common/logging.h"
#include "common/process.h"
#include "worker/service/worker.h"
#include "worker/service/worker_flags.h"

namespace {

int Fail(absl::string_view message) {
  std::fprintf(stderr, "ridge-worker: %.*s\n", static_cast<int>(message.size()), message.data());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  ridge::InstallTermination();
  const int64_t descriptors = ridge::RaiseDescriptorLimit();
  const std::vector<std::string> rest = ridge::ParseFlags("Serves a language model.", argc, argv);
  if (!rest.empty()) return Fail("unexpected argument: " + rest.front());
  const absl::StatusOr<ridge::worker::WorkerConfig> config = ridge::worker::WorkerConfigFromFlags();
  if (!config.ok()) return Fail(config.status().message());
  ridge::InitLogging("ridge-worker", config->log_level);
  ridge::LogInfo("config: {}; up to {} open files", ToString(*config), descriptors);

  absl::StatusOr<std::unique_ptr<ridge::worker::Worker>> worker = ridge::worker::Worker::Start(*config);
  if (!worker.ok()) return Fail(worker.status().message());
  ridge::HoldTermination();
  ridge::LogInfo("ready: {}", (*worker)->DescribePorts());

  const int signal = ridge::WaitForTermination();
  ridge::LogInfo("signal {}: draining", signal);
  const int cut = (*worker)->Drain();
  if (cut > 0) {
    ridge::LogWarning("--drain_timeout: streams cut off: {}", cut);
  } else {
    ridge::LogInfo("drained");
  }
  return 0;
}
