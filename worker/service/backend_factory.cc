#include "worker/service/backend_factory.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/logging.h"
#include "common/status.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/simulated/card.h"
#include "worker/backend/simulated/simulated_backend.h"
#if RIDGE_HAVE_CUDA
#include "worker/backend/cuda/cublas_lt.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/backend/cuda/open_card.h"
#endif

namespace ridge::worker {
namespace {

template <typename Device>
std::unique_ptr<Backend> WithMetrics(std::unique_ptr<Device> backend, MetricsRegistry* registry) {
  registry->CounterCallback("ridge_fp16_saturations_total", "Activations that fp16 could not hold.", {},
                            [device = backend.get()] { return static_cast<double>(device->saturations()); });
  return backend;
}

#if RIDGE_HAVE_CUDA
absl::StatusOr<std::unique_ptr<Backend>> CreateCuda(const WorkerConfig& config, const EnginePolicy& policy,
                                                    const WeightSource& source, MetricsRegistry* registry) {
  CudaOptions options;
  options.graphs = policy.launch == LaunchPolicy::kGraph;
  options.decode_layers = options.graphs;  // an engine without graphs is one that pays for its launches
  options.split_attention = policy.attention == AttentionPolicy::kSplit;
  if (config.matmul == "cublaslt") {
    if (const absl::Status library = CublasLt::Find(); !library.ok())
      return InvalidField("--matmul", library.message());
    options.matmul = CudaMatmul::kCublasLt;
  }
  absl::StatusOr<std::unique_ptr<CudaBackend>> backend = CudaBackend::Create(source, options);
  if (absl::IsFailedPrecondition(backend.status()))
    return InvalidField("--device", backend.status().message());
  if (!backend.ok()) return InvalidField("--model", backend.status().message());
  return WithMetrics(*std::move(backend), registry);
}
#endif

absl::StatusOr<std::unique_ptr<Backend>> CreateSimulated(absl::string_view card_name,
                                                         const EnginePolicy& policy,
                                                         const WeightSource& source) {
  const absl::StatusOr<SimulatedCard> card = LoadCard(card_name);
  if (!card.ok()) return InvalidField("--device", card.status().message());
  SimulatedOptions options;
  options.split_attention = policy.attention == AttentionPolicy::kSplit;
  options.replay = policy.launch == LaunchPolicy::kGraph;
  return std::make_unique<SimulatedBackend>(*card, source.config(), options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const WorkerConfig& config, const WeightSource& source,
                                                       MetricsRegistry* registry) {
  const EnginePolicy policy = PolicyOf(config.policy).value();
#if RIDGE_HAVE_CUDA
  const std::string obstacle = config.device == "auto" ? Obstacle(CountCards()) : "";
  if (config.device == "cuda" || (config.device == "auto" && obstacle.empty())) {
    return CreateCuda(config, policy, source, registry);
  }
#else
  const std::string obstacle = "this build has no CUDA backend";
#endif
  if (absl::StartsWith(config.device, kSimulatedPrefix)) {
    return CreateSimulated(absl::StripPrefix(config.device, kSimulatedPrefix), policy, source);
  }
  if (config.device == "auto") LogInfo("device: serving on the CPU: {}", obstacle);
  absl::StatusOr<std::unique_ptr<CpuBackend>> backend =
      CpuBackend::Create(source, {.threads = config.threads,
                                  .pin_threads = config.pin_threads,
                                  .split_attention = policy.attention == AttentionPolicy::kSplit});
  if (!backend.ok()) return InvalidField("--model", backend.status().message());
  return WithMetrics(*std::move(backend), registry);
}

}  // namespace ridge::worker
