#include <cstdio>

#include "common/flags.h"
#include "common/logging.h"
#include "common/process.h"
#include "router/router.h"
#include "router/router_config.h"

namespace {

int Fail(absl::string_view message) {
  std::fprintf(stderr, "ridge-router: %.*s\n", static_cast<int>(message.size()), message.data());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  ridge::InstallTermination();
  const int64_t descriptors = ridge::RaiseDescriptorLimit();
  const std::vector<std::string> rest =
      ridge::ParseFlags("Relays calls of ridge.v1.Inference to workers.", argc, argv);
  if (!rest.empty()) return Fail("unexpected argument: " + rest.front());
  const absl::StatusOr<ridge::router::RouterConfig> config = ridge::router::RouterConfigFromFlags();
  if (!config.ok()) return Fail(config.status().message());
  ridge::InitLogging("ridge-router", config->log_level);
  ridge::LogInfo("config: {}; up to {} open files", ToString(*config), descriptors);

  absl::StatusOr<std::unique_ptr<ridge::router::Router>> router = ridge::router::Router::Start(*config);
  if (!router.ok()) return Fail(router.status().message());
  ridge::HoldTermination();
  ridge::LogInfo("ready: {}", (*router)->DescribePorts());

  const int signal = ridge::WaitForTermination();
  ridge::LogInfo("signal {}: draining", signal);
  const int cut = (*router)->Drain();
  if (cut > 0) {
    ridge::LogWarning("--drain_timeout: streams cut off: {}", cut);
  } else {
    ridge::LogInfo("drained");
  }
  return 0;
}
