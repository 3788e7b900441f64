// cuda-bench: what the CUDA kernels and whole steps cost on this card, each beside the read probe of the same
// run.
//
// usage: cuda-bench [MODEL (default synthetic:qwen2.5-1.5b)] [OUT.json] [SECTIONS: any of m (matmuls), d
// (decode), p (prefill), o (of decode, layers by kernels of their own)] [FILTER, as gate_up32,d8x16]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/bandwidth_probe.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/packing.h"
#include "nlohmann/json.hpp"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/backend/cuda/cuda_weights.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

namespace cuda = kernels::cuda;
using Clock = std::chrono::steady_clock;

constexpr int64_t kProbeBytes = int64_t{3'240'000'000} / 16 * 16;
constexpr int kRepeats = 9;

void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "cuda-bench: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "cuda-bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Seconds(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Median time of a graph of what `enqueue` puts on the stream, in microseconds.
double GraphMicros(cudaStream_t stream, const std::function<void()>& enqueue) {
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  enqueue();
  cudaGraph_t graph;
  Require(cudaStreamEndCapture(stream, &graph), "capture");
  cudaGraphExec_t exec;
  Require(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  Require(cudaEventCreate(&begin), "event");
  Require(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < kRepeats + 2; ++i) {
    Require(cudaEventRecord(begin, stream), "event");
    Require(cudaGraphLaunch(exec, stream), "launch");
    Require(cudaEventRecord(end, stream), "event");
    Require(cudaEventSynchronize(end), "kernel");
    float ms = 0;
    Require(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 2) times.push_back(ms * 1e3);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  return Median(times);
}

class Bench {
 public:
  Bench(const std::string& model, const std::string& sections, const std::string& filter)
      : sections_(sections), filter_(filter), source_(OpenModel(model).value()) {
    Require(cuda::GetDeviceInfo(&device_), "device");
    stream_ = CudaStream::Create().value();
    Require(cuda::PrepareMatmul(), "matmul");
    out_["model"] = model;
    out_["device"] = device_.name;
    out_["driver"] = device_.driver_version;
    out_["memory_bytes"] = device_.memory_bytes;
    out_["sm_clock_mhz"] = device_.sm_clock_mhz;
    out_["memory_clock_mhz"] = device_.memory_clock_mhz;
    Probe();
  }

  void Run() {
    if (sections_.find('m') != std::string::npos) Matmuls();
    if (sections_.find('d') != std::string::npos || sections_.find('p') != std::string::npos) Steps();
  }

  const nlohmann::json& out() const { return out_; }

 private:
  bool Wanted(const std::string& what) const {
    return filter_.empty() ||
           absl::StrContains(absl::StrCat(",", filter_, ","), absl::StrCat(",", what, ","));
  }

  // Random fp16, so that neither compression nor zeros flatter.
  void Probe() {
    DeviceMemory data = DeviceMemory::Allocate(kProbeBytes, "probe").value();
    DeviceMemory sink = DeviceMemory::Allocate(1 << 20, "probe").value();
    const GeneratedTensor tensor = *source_->Generated({TensorRole::kGate, 0});
    Require(cuda::LaunchPackSynthetic({tensor.key, tensor.scale, tensor.offset, tensor.shift},
                                      kProbeBytes / 2 / 1600,
                                      {data.as<Half>(), 1600, 0, cuda::RowPlacement::kPlain}, stream_.get()),
            "probe");
    double best = 0;
    for (int blocks : {1, 2, 3, 4}) {
      const double us = GraphMicros(stream_.get(), [&] {
        Require(cuda::LaunchReadProbe(data.as<void>(), kProbeBytes, sink.as<uint32_t>(),
                                      blocks * device_.num_sms, stream_.get()),
                "probe");
      });
      best = std::max(best, static_cast<double>(kProbeBytes) / us * 1e-3);
    }
    probe_gbps_ = best;
    out_["read_probe_gb_per_s"] = best;
    std::printf("%s: read probe %.0f GB/s\n", device_.name.c_str(), best);
  }

  void Matmuls() {
    const CudaWeights weights = CudaWeights::Load(*source_, stream_.get()).value();
    const ModelConfig& config = source_->config();
    constexpr int32_t kMaxRows = 4096;
    const int64_t widest = std::max<int64_t>(config.mlp_size, config.hidden_size);
    DeviceMemory x = DeviceMemory::Allocate(kMaxRows * widest * 2, "x").value();
    DeviceMemory y = DeviceMemory::Allocate(int64_t{kMaxRows} * 2 * config.mlp_size * 4, "y").value();
    DeviceMemory residual = DeviceMemory::Allocate(kMaxRows * widest * 4, "residual").value();
    DeviceMemory workspace = DeviceMemory::Allocate(int64_t{256} << 20, "workspace").value();
    DeviceMemory counters = DeviceMemory::Allocate(1 << 20, "counters").value();
    DeviceMemory saturations = DeviceMemory::Allocate(8, "saturations").value();
    const GeneratedTensor tensor = {1, 1.7f / (1 << 23), 0, 0};
    Require(cuda::LaunchPackSynthetic({tensor.key, tensor.scale, 0, 0}, kMaxRows,
                                      {x.as<Half>(), widest, 0, cuda::RowPlacement::kPlain}, stream_.get()),
            "x");
    for (DeviceMemory* memory : {&y, &residual, &counters, &saturations}) {
      Require(cudaMemsetAsync(memory->as<void>(), 0, static_cast<size_t>(memory->bytes()), stream_.get()),
              "memset");
    }
    struct Kind {
      const char* name;
      const CudaMatrix CudaLayer::*matrix;
      cuda::MatmulOutput output;
      bool norm;
    };
    const Kind kinds[] = {{"qkv", &CudaLayer::qkv, cuda::MatmulOutput::kStore, true},
                          {"o", &CudaLayer::attention_output, cuda::MatmulOutput::kResidual, false},
                          {"gate_up", &CudaLayer::gate_up, cuda::MatmulOutput::kSwiGlu, true},
                          {"down", &CudaLayer::down, cuda::MatmulOutput::kResidual, false},
                          {"lm_head", nullptr, cuda::MatmulOutput::kStore, false}};
    const cuda::MatmulDevice device = cuda::MatmulDeviceOf(device_);
    std::printf("%-8s %5s %9s %8s %8s %6s  plan\n", "matmul", "m", "us", "GB/s", "TFLOPS", "share");
    double step_us[2] = {0, 0};
    for (const Kind& kind : kinds) {
      for (int32_t m : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096}) {
        if ((kind.matrix == nullptr && m > 256) || !Wanted(absl::StrCat(kind.name, m))) continue;
        std::vector<CudaMatrix> matrices;
        if (kind.matrix == nullptr) {
          matrices.push_back(weights.output());
        } else {
          for (const CudaLayer& layer : weights.layers()) matrices.push_back(layer.*kind.matrix);
        }
        const CudaMatrix& first = matrices.front();
        // As in a step: the next norm adds the chunks.
        const bool may_leave_chunks = kind.output == cuda::MatmulOutput::kResidual;
        const cuda::MatmulPlan plan = cuda::PlanMatmul(
            m, first.n, first.k, device, may_leave_chunks ? cuda::MatmulOutput::kPartials : kind.output);
        const cuda::MatmulOutput output =
            may_leave_chunks && cuda::TakesPartials(plan) ? cuda::MatmulOutput::kPartials : kind.output;
        for (const bool norm : {false, true}) {
          if (norm && (!kind.norm || !cuda::TakesNorm(plan, m, first.k))) continue;
          const double us = GraphMicros(stream_.get(),
                                        [&] {
                                          for (const CudaMatrix& matrix : matrices) {
                                            cuda::MatmulArgs args{};
                                            args.x = x.as<Half>();
                                            args.w = matrix.packed;
                                            args.m = m;
                                            args.n = matrix.n;
                                            args.k = matrix.k;
                                            args.output = output;
                                            args.y = kind.output == cuda::MatmulOutput::kResidual
                                                         ? residual.as<float>()
                                                         : y.as<float>();
                                            args.y_stride = matrix.n;
                                            args.gated = y.as<Half>();
                                            args.saturations = saturations.as<unsigned long long>();
                                            args.workspace = workspace.as<float>();
                                            args.counters = counters.as<int32_t>();
                                            if (norm) {
                                              args.norm_x = residual.as<float>();
                                              args.norm_weight = weights.final_norm();
                                              args.norm_eps = 1e-6f;
                                            }
                                            Require(cuda::LaunchMatmul(plan, args, stream_.get()), kind.name);
                                          }
                                        }) /
                            static_cast<double>(matrices.size());
          const double bytes = 2.0 * first.n * first.k, flops = 2.0 * m * first.n * first.k;
          std::printf("%-8s %5d %9.2f %8.0f %8.1f %6.2f  %s%s\n", kind.name, m, us, bytes / us * 1e-3,
                      flops / us * 1e-6, bytes / us * 1e-3 / probe_gbps_, plan.ToString().c_str(),
                      norm ? " norm" : "");
          out_["matmuls"].push_back({{"name", kind.name},
                                     {"m", m},
                                     {"us", us},
                                     {"gb_per_s", bytes / us * 1e-3},
                                     {"tflops", flops / us * 1e-6},
                                     {"plan", plan.ToString()},
                                     {"norm", norm}});
          if (m == 1 && norm == kind.norm) step_us[0] += us * static_cast<double>(matrices.size());
        }
      }
    }
    std::printf("sum of a step's matmuls at m = 1: %.1f us\n", step_us[0]);
  }

  void Steps() {
    const ModelConfig& config = source_->config();
    const bool own_kernels = sections_.find('o') != std::string::npos;
    const Clock::time_point begin = Clock::now();
    std::unique_ptr<CudaBackend> backend =
        CudaBackend::Create(*source_, {.decode_layers = !own_kernels}).value();
    const double load_s = Seconds(begin);
    constexpr int32_t kMaxSlots = 64, kBlocks = 64 * 300;
    Require(backend->Reserve(kBlocks, {.max_slots = kMaxSlots, .max_step_rows = 4096}));
    std::printf("load %.3f s, reserve %.3f s\n", load_s, Seconds(begin) - load_s);
    out_["load_s"] = load_s;
    out_["reserve_s"] = Seconds(begin) - load_s;
    if (sections_.find('p') != std::string::npos) {
      for (int32_t rows : {16, 64, 256, 512, 1024, 4096}) Prefill(backend.get(), config, rows);
    }
    if (sections_.find('d') == std::string::npos) return;
    for (int32_t context : {16, 1024, 4096}) {
      for (int32_t batch : {1, 2, 4, 8, 32, 64}) {
        if (Wanted(absl::StrCat("d", batch, "x", context))) Decode(backend.get(), config, batch, context);
      }
    }
  }

  std::vector<TokenId> Tokens(int32_t count, int32_t vocab) {
    std::vector<TokenId> tokens(static_cast<size_t>(count));
    for (TokenId& token : tokens)
      token = static_cast<TokenId>((random_ = random_ * 1664525 + 1013904223) % static_cast<uint32_t>(vocab));
    return tokens;
  }

  void Prefill(Backend* backend, const ModelConfig& config, int32_t rows) {
    std::vector<double> times;
    for (int repeat = 0; repeat < 5; ++repeat) {
      StepPlan plan;
      plan.attaches.push_back({0, {.temperature = 0.0f}});
      for (int32_t block = 0; block * kBlockTokens < rows; ++block) plan.appends.push_back({0, block});
      plan.tokens = Tokens(rows, config.vocab_size);
      plan.segments.push_back({0, 0, rows, false, 0, 1});
      const Clock::time_point begin = Clock::now();
      (void)backend->Collect(backend->Submit(plan)).value();
      times.push_back(Seconds(begin) * 1e3);
      StepPlan release;
      release.releases.push_back(0);
      (void)backend->Collect(backend->Submit(release)).value();
    }
    const double ms = Median(times);
    const double flops =
        2.0 * rows *
        static_cast<double>(config.num_parameters() - int64_t{config.vocab_size} * config.hidden_size);
    std::printf("prefill %5d rows: %8.3f ms, %.1f TFLOPS of matmuls\n", rows, ms, flops / ms * 1e-9);
    out_["prefill"].push_back({{"rows", rows}, {"ms", ms}, {"tflops", flops / ms * 1e-9}});
  }

  // Steps as an engine runs them: one submitted ahead of the one that is collected.
  void Decode(Backend* backend, const ModelConfig& config, int32_t batch, int32_t context) {
    constexpr int kWarmup = 4, kSteps = 40;
    const int32_t blocks = (context + kWarmup + kSteps + kBlockTokens) / kBlockTokens + 1;
    for (int32_t slot = 0; slot < batch; ++slot) {
      StepPlan plan;
      plan.attaches.push_back({slot, {.temperature = 0.0f}});
      for (int32_t block = 0; block < blocks; ++block) plan.appends.push_back({slot, slot * blocks + block});
      plan.tokens = Tokens(context, config.vocab_size);
      plan.segments.push_back({slot, 0, context, false, 0, 1});
      (void)backend->Collect(backend->Submit(plan)).value();
    }
    const auto submit = [&](int step) {
      StepPlan plan;
      for (int32_t slot = 0; slot < batch; ++slot)
        plan.segments.push_back({slot, context + step, 1, true, 0, 1});
      return backend->Submit(plan);
    };
    std::vector<double> times;
    double host_us = 0;
    StepTicket ticket = submit(0);
    Clock::time_point last = Clock::now();
    for (int step = 1; step < kWarmup + kSteps; ++step) {
      const Clock::time_point submit_begin = Clock::now();
      const StepTicket next = submit(step);
      host_us += Seconds(submit_begin) * 1e6 / (kWarmup + kSteps - 1);
      (void)backend->Collect(ticket).value();
      ticket = next;
      const Clock::time_point now = Clock::now();
      if (step > kWarmup) times.push_back(std::chrono::duration<double, std::milli>(now - last).count());
      last = now;
    }
    (void)backend->Collect(ticket).value();
    StepPlan release;
    for (int32_t slot = 0; slot < batch; ++slot) release.releases.push_back(slot);
    (void)backend->Collect(backend->Submit(release)).value();

    const double ms = Median(times);
    const double bytes = 2.0 * static_cast<double>(config.num_parameters()) +
                         static_cast<double>(config.kv_bytes_per_token()) * batch * (context + kSteps / 2);
    const double share = bytes / probe_gbps_ * 1e-6 / ms;
    std::printf("decode batch %3d context %5d: %7.4f ms a step, floor %7.4f ms, share %.3f, submit %.0f us\n",
                batch, context, ms, bytes / probe_gbps_ * 1e-6, share, host_us);
    out_["decode"].push_back({{"batch", batch},
                              {"context", context},
                              {"ms", ms},
                              {"share_of_probe", share},
                              {"submit_us", host_us}});
  }

  const std::string sections_;
  const std::string filter_;  // "gate_up32,d8x16": only these matmuls and m, batches and contexts
  const std::unique_ptr<WeightSource> source_;
  cuda::DeviceInfo device_;
  CudaStream stream_;
  double probe_gbps_ = 0;
  uint32_t random_ = 1;
  nlohmann::json out_;
};

}  // namespace
}  // namespace ridge::worker

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "synthetic:qwen2.5-1.5b";
  const std::string sections = argc > 3 ? argv[3] : "mdp";
  if (ridge::kernels::cuda::DeviceCount() == 0) {
    std::puts("no CUDA device: nothing measured");
    return 0;
  }
  ridge::worker::Bench bench(model, sections, argc > 4 ? argv[4] : "");
  bench.Run();
  if (argc > 2) std::ofstream(argv[2]) << bench.out().dump(1) << '\n';
  return 0;
}
