#include <cstdio>

#include "common/flags.h"
#include "common/logging.h"
#include "common/process.h"
#include "worker/service/worker.h"
#include "worker/service/worker_config.h"

namespace {

int Fail(absl::string_view message) {
  std::fprintf(stderr, "ridge-worker: %.*s\n", static_cast<int>(message.size()), message.data());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  ridge::BlockTerminationSignals();
  const std::vector<std::string> rest = ridge::ParseFlags("Serves a language model.", argc, argv);
  if (!rest.empty()) return Fail("unexpected argument: " + rest.front());
  const absl::StatusOr<ridge::worker::WorkerConfig> config = ridge::worker::WorkerConfigFromFlags();
  if (!config.ok()) return Fail(config.status().message());
  ridge::InitLogging("ridge-worker", config->log_level);
  ridge::LogInfo("config: {}", ToString(*config));

  absl::StatusOr<std::unique_ptr<ridge::worker::Worker>> worker = ridge::worker::Worker::Start(*config);
  if (!worker.ok()) return Fail(worker.status().message());
  const std::string host = ListenHost(*config);
  ridge::LogInfo("ready: gRPC on {}:{}, metrics on {}:{}", host, (*worker)->grpc_port(), host,
                 (*worker)->metrics_port());

  const int signal = ridge::WaitForTermination();
  ridge::LogInfo("signal {}: draining", signal);
  (*worker)->Drain();
  ridge::LogInfo("drained");
  return 0;
}
