// kernel-bench: each CPU kernel on the shapes of two models, with the bytes and operations a second that it
// reaches on all cores together, and its share of what the machine gives: memory_share of the read probe,
// flops_share of the multiply-add probe, both measured at start.
//
//   kernel-bench --benchmark_filter='Matmul.*'
#include <thread>
#include <vector>

#include "bench/kernels/probes.h"
#include "benchmark/benchmark.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/layer_ops.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/thread_pool.h"
#include "worker/backend/cpu/page_memory.h"

namespace ridge::bench {
namespace {

namespace cpu = kernels::cpu;
using kernels::Half;

// More than any cache, so that matrices that are used in turn come from memory.
constexpr int64_t kMemoryBytes = int64_t{1} << 30;

struct Machine {
  Machine() {
    Half* halves = memory.as<Half>();
    pool.Run([&](int thread) {
      const auto share = cpu::ShareOf(kMemoryBytes / 2, thread, pool.num_threads());
      // Between 0.0078 and 0.0156.
      for (int64_t i = share.begin; i < share.end; ++i)
        halves[i] = static_cast<Half>(0x2000 + (i * 7919 & 0x3FF));
    });
    bandwidth = ReadBandwidth(&pool, halves, kMemoryBytes);
    flops = MultiplyAddRate(&pool);
  }

  cpu::ThreadPool pool{static_cast<int>(std::thread::hardware_concurrency())};
  worker::PageMemory memory = worker::PageMemory::Allocate(kMemoryBytes).value();
  double bandwidth;  // bytes a second
  double flops;      // a second
};

Machine& TheMachine() {
  static Machine machine;
  return machine;
}

// Rates and shares from the bytes and operations of one iteration.
void Report(benchmark::State& state, double bytes, double flops) {
  const double iterations = static_cast<double>(state.iterations());
  const auto rate = [&](double value) { return benchmark::Counter(value, benchmark::Counter::kIsRate); };
  state.counters["GB/s"] = rate(bytes * iterations / 1e9);
  state.counters["GFLOPS"] = rate(flops * iterations / 1e9);
  state.counters["memory_share"] = rate(bytes * iterations / TheMachine().bandwidth);
  state.counters["flops_share"] = rate(flops * iterations / TheMachine().flops);
}

void Matmul(benchmark::State& state) {
  Machine& machine = TheMachine();
  const int64_t n = state.range(0), k = state.range(1), m = state.range(2);
  const int64_t size = cpu::PackedSize(n, k), matrices = kMemoryBytes / 2 / size;
  std::vector<float> x(static_cast<size_t>(m * k), 0.5f), y(static_cast<size_t>(m * n));
  std::vector<std::vector<float>> scratch(static_cast<size_t>(machine.pool.num_threads()),
                                          std::vector<float>(static_cast<size_t>(cpu::MatmulScratch(k))));
  int64_t matrix = 0;
  for (auto _ : state) {
    const cpu::MatmulArgs args{x.data(), machine.memory.as<Half>() + matrix * size, y.data(), m, n, k, n};
    machine.pool.Run([&](int thread) {
      const auto panels = cpu::ShareOf(cpu::NumPanels(n), thread, machine.pool.num_threads());
      cpu::Matmul(args, panels.begin, panels.end, scratch[static_cast<size_t>(thread)].data());
    });
    matrix = (matrix + 1) % matrices;
  }
  Report(state, 2.0 * static_cast<double>(n * k), 2.0 * static_cast<double>(m * n * k));
}

// One decode row against a long context, one KV head a thread, as a model of 24 layers has it in its pool:
// blocks of all layers, in shuffled order. In the cache: the same layer of the same 512 tokens again and
// again.
void Attention(benchmark::State& state) {
  Machine& machine = TheMachine();
  const bool cached = state.range(2) != 0;
  const int64_t context = cached ? 512 : state.range(0), layers = 24;
  const int32_t group = static_cast<int32_t>(state.range(1)), d = 64;
  const int threads = machine.pool.num_threads();
  const int64_t piece = cpu::kKvBlockTokens * d, block_stride = layers * threads * 2 * piece;
  std::vector<float> q(static_cast<size_t>(group * d * threads), 0.5f), out(q.size());
  std::vector<int32_t> table(static_cast<size_t>(kMemoryBytes / 2 / block_stride));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i * 7919 % table.size());
  std::vector<std::vector<float>> scratch(
      static_cast<size_t>(threads), std::vector<float>(static_cast<size_t>(cpu::AttentionScratch(group, d))));
  const int64_t blocks = context / cpu::kKvBlockTokens,
                sequences = static_cast<int64_t>(table.size()) / blocks;
  int64_t step = 0;
  for (auto _ : state) {
    machine.pool.Run([&](int thread) {
      int64_t saturations = 0;
      const int64_t layer = cached ? 0 : step % layers, sequence = cached ? 0 : step / layers % sequences;
      const int64_t k_offset = (layer * threads + thread) * 2 * piece;
      cpu::Attention({q.data() + thread * group * d,
                      out.data() + thread * group * d,
                      d,
                      d,
                      1,
                      context - 1,
                      group,
                      d,
                      machine.memory.as<Half>(),
                      table.data() + sequence * blocks,
                      block_stride,
                      k_offset,
                      k_offset + piece,
                      &saturations,
                      {}},
                     scratch[static_cast<size_t>(thread)].data());
    });
    ++step;
  }
  const double keys = static_cast<double>(context * threads);
  Report(state, keys * d * 2 * 2, keys * 4.0 * d * group);
}

void SwiGlu(benchmark::State& state) {
  const int64_t size = state.range(0);
  std::vector<float> gate(static_cast<size_t>(size), 0.7f), up(gate), out(gate);
  int64_t saturations = 0;
  for (auto _ : state) {
    cpu::SwiGlu(gate.data(), up.data(), size, out.data(), &saturations);
    benchmark::ClobberMemory();
  }
  Report(state, 3.0 * 4 * static_cast<double>(size), 0);
}

void RmsNorm(benchmark::State& state) {
  const int64_t size = state.range(0);
  std::vector<float> x(static_cast<size_t>(size), 0.7f), weight(x), out(x);
  int64_t saturations = 0;
  for (auto _ : state) {
    cpu::RmsNorm(x.data(), weight.data(), 1e-5f, size, out.data(), &saturations);
    benchmark::ClobberMemory();
  }
  Report(state, 3.0 * 4 * static_cast<double>(size), 3.0 * static_cast<double>(size));
}

// Outputs and inputs of the two models' matrices, and rows.
void MatmulShapes(benchmark::internal::Benchmark* matmul) {
  matmul->ArgNames({"n", "k", "m"});
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{4864, 896}, {896, 4864}, {1536, 576}, {576, 1536}, {576, 576}}) {
    for (const int64_t m : {1, 8, 32, 512}) matmul->Args({n, k, m});
  }
}

BENCHMARK(Matmul)->Apply(MatmulShapes)->UseRealTime();
BENCHMARK(Attention)
    ->ArgNames({"context", "group", "cached"})
    ->ArgsProduct({{4096}, {7, 3}, {0, 1}})
    ->UseRealTime();
BENCHMARK(SwiGlu)->Arg(1536)->Arg(4864);
BENCHMARK(RmsNorm)->Arg(576)->Arg(896);

}  // namespace
}  // namespace ridge::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const auto& machine = ridge::bench::TheMachine();
  benchmark::AddCustomContext("read_GB/s", std::to_string(machine.bandwidth / 1e9));
  benchmark::AddCustomContext("multiply_add_GFLOPS", std::to_string(machine.flops / 1e9));
  benchmark::RunSpecifiedBenchmarks();
}
