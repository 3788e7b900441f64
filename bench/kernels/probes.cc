#include "bench/kernels/probes.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/kernels/probes.cc"
#include "hwy/foreach_target.h"
// After foreach_target, which decides the instruction set.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
constexpr Tag kFloat;
constexpr int64_t kLine = 64;

// A sum that depends on every line read, so that no load may be left out. Distance 0: no prefetch.
template <int64_t kDistance>
float ReadLines(const char* data, int64_t lines) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag()));
  constexpr int64_t kUnroll = 4;
  hn::Vec<Tag> sums[kUnroll];
  for (auto& sum : sums) sum = hn::Zero(kFloat);
  for (int64_t i = 0; i + kUnroll <= lines; i += kUnroll) {
    for (int64_t j = 0; j < kUnroll; ++j) {
      const char* line = data + (i + j) * kLine;
      if (kDistance > 0) hwy::Prefetch(line + kDistance);
      for (int64_t at = 0; at < kLine / static_cast<int64_t>(sizeof(float)); at += kLanes) {
        sums[j] = hn::Add(sums[j], hn::LoadU(kFloat, reinterpret_cast<const float*>(line) + at));
      }
    }
  }
  for (int64_t j = 1; j < kUnroll; ++j) sums[0] = hn::Add(sums[0], sums[j]);
  return hn::GetLane(hn::SumOfLanes(kFloat, sums[0]));
}

float ReadTarget(const char* data, int64_t lines, int way) {
  switch (way) {
    case 0:
      return ReadLines<0>(data, lines);
    case 1:
      return ReadLines<2048>(data, lines);
    case 2:
      return ReadLines<4096>(data, lines);
    default:
      return ReadLines<8192>(data, lines);
  }
}

// 12 independent chains; returns the operations done.
double MultiplyAddTarget(int64_t rounds, float* sink) {
  constexpr int kChains = 12;
  hn::Vec<Tag> chains[kChains];
  for (auto& chain : chains) chain = hn::Zero(kFloat);
  const auto factor = hn::Set(kFloat, *sink), addend = hn::Set(kFloat, 0.5f);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& chain : chains) chain = hn::MulAdd(chain, factor, addend);
  }
  for (int i = 1; i < kChains; ++i) chains[0] = hn::Add(chains[0], chains[i]);
  *sink = hn::GetLane(hn::SumOfLanes(kFloat, chains[0]));
  return 2.0 * kChains * static_cast<double>(hn::Lanes(kFloat)) * static_cast<double>(rounds);
}

}  // namespace ridge::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::bench {

HWY_EXPORT(ReadTarget);
HWY_EXPORT(MultiplyAddTarget);

namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double ReadBandwidth(kernels::cpu::ThreadPool* pool, const void* data, int64_t bytes) {
  constexpr int kWays = 4;
  std::atomic<float> sink{0.0f};
  double best = 0;
  for (int way = 0; way < kWays; ++way) {
    const auto start = Clock::now();
    pool->Run([&](int thread) {
      const auto share = kernels::cpu::ShareOf(bytes / 64, thread, pool->num_threads());
      sink = HWY_DYNAMIC_DISPATCH(ReadTarget)(static_cast<const char*>(data) + share.begin * 64,
                                              share.end - share.begin, way);
    });
    best = std::max(best, static_cast<double>(bytes) / SecondsSince(start));
  }
  return best;
}

double MultiplyAddRate(kernels::cpu::ThreadPool* pool) {
  std::atomic<double> operations{0};
  const auto start = Clock::now();
  pool->Run([&](int) {
    float sink = 0.999f;
    const double mine = HWY_DYNAMIC_DISPATCH(MultiplyAddTarget)(2'000'000, &sink);
    // Always true, but the compiler does not know that: the chains must be computed.
    if (sink > 0.0f) operations.fetch_add(mine);
  });
  return operations / SecondsSince(start);
}

}  // namespace ridge::bench
#endif
