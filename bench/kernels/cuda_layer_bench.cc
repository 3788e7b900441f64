// Times of the kernels beside the matmuls, each beside the read-only probe of the same run: microseconds and
// GB/s (bytes that must move) or TFLOPS.
//
// usage: cuda-layer-bench [FILE for one JSON object a line] [TEXT: only the kernels whose names contain it]
//
// Shapes are those of Qwen2.5-1.5B unless the name says otherwise. A time is the median of 9 rounds of some
// launches in a row on one stream, so that what a launch costs the host is hidden where a kernel is longer
// than that.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/bandwidth_probe.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/rms_norm.h"
#include "kernels/cuda/rope_kv.h"
#include "kernels/cuda/sampling.h"
#include "kernels/half.h"

namespace ridge::kernels::cuda {
namespace {

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Device memory that is never given back: the program is short.
template <typename T>
T* Allocate(size_t count, int byte = 0) {
  T* data;
  Check(cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(T)));
  Check(cudaMemset(data, byte, count * sizeof(T)));
  return data;
}

template <typename T>
T* Upload(const std::vector<T>& host) {
  T* data = Allocate<T>(std::max<size_t>(host.size(), 1));
  Check(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return data;
}

// Random values of ordinary size, made of a short random piece.
Half* RandomHalves(size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<Half> piece(size_t{1} << 20);
  for (Half& value : piece) value = FloatToHalf(normal(random));
  Half* data = Allocate<Half>(count);
  for (size_t at = 0; at < count; at += piece.size()) {
    Check(cudaMemcpy(data + at, piece.data(), std::min(piece.size(), count - at) * sizeof(Half),
                     cudaMemcpyHostToDevice));
  }
  return data;
}

float* RandomFloats(size_t count, float scale) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> host(count);
  const size_t piece = std::min(count, (size_t{1} << 20) + 7);
  for (size_t i = 0; i < piece; ++i) host[i] = normal(random);
  for (size_t i = piece; i < count; ++i) host[i] = host[i - piece];
  return Upload(host);
}

class Bench {
 public:
  Bench(const char* path, std::string filter)
      : file_(path == nullptr ? nullptr : std::fopen(path, "w")), filter_(std::move(filter)) {
    Check(GetDeviceInfo(&info_));
    const int64_t bytes = int64_t{2} << 30;
    const Half* data = RandomHalves(bytes / 2);
    uint32_t* sink = Allocate<uint32_t>(4096);
    const double us =
        MedianUs(4, [&](int) { Check(LaunchReadProbe(data, bytes, sink, 4 * info_.num_sms, nullptr)); });
    probe_ = static_cast<double>(bytes) / us * 1e-3;
    Print("read probe", us, static_cast<double>(bytes), 0);
  }
  ~Bench() {
    if (file_ != nullptr) std::fclose(file_);
  }

  const DeviceInfo& info() const { return info_; }

  bool Wants(const std::string& name) const { return name.find(filter_) != std::string::npos; }

  // Launches `launch(i)` for growing i.
  void Time(const std::string& name, double bytes, double flops, const std::function<void(int)>& launch) {
    if (Wants(name)) Print(name, MedianUs(28, launch), bytes, flops);
  }

 private:
  double MedianUs(int launches, const std::function<void(int)>& launch) {
    cudaEvent_t begin, end;
    Check(cudaEventCreate(&begin));
    Check(cudaEventCreate(&end));
    std::vector<float> times;
    for (int round = 0; round < 10; ++round) {
      Check(cudaEventRecord(begin));
      for (int i = 0; i < launches; ++i) launch(i);
      Check(cudaEventRecord(end));
      Check(cudaEventSynchronize(end));
      float ms;
      Check(cudaEventElapsedTime(&ms, begin, end));
      if (round > 0) times.push_back(ms * 1e3f / static_cast<float>(launches));  // the first one warms up
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void Print(const std::string& name, double us, double bytes, double flops) {
    const double gb_s = bytes / us * 1e-3, tflops = flops / us * 1e-6;
    std::printf("%-52s %9.2f us %8.1f GB/s %5.2f of the probe %7.1f TFLOPS\n", name.c_str(), us, gb_s,
                gb_s / probe_, tflops);
    if (file_ == nullptr) return;
    std::fprintf(
        file_,
        "{\"kernel\": \"%s\", \"us\": %.2f, \"gb_per_s\": %.1f, \"share_of_probe\": %.3f, \"tflops\": %.1f, "
        "\"device\": \"%s\", \"memory_bytes\": %lld, \"sm_clock_mhz\": %d, \"memory_clock_mhz\": %d}\n",
        name.c_str(), us, gb_s, gb_s / probe_, tflops, info_.name.c_str(),
        static_cast<long long>(info_.memory_bytes), info_.sm_clock_mhz, info_.memory_clock_mhz);
  }

  std::FILE* file_;
  const std::string filter_;
  DeviceInfo info_;
  double probe_ = 0;
};

struct Model {
  const char* name;
  int heads;
  int kv_heads;
  int head_dim;
};

// `runs` sequences whose last `rows` rows of `context` tokens are computed, in a pool of 4 layers.
void BenchAttention(Bench* bench, const Model& model, int runs, int context, int rows) {
  const std::string name = std::string("attention ") + model.name + ", " + std::to_string(runs) + " x " +
                           std::to_string(rows) + " rows at " + std::to_string(context);
  if (!bench->Wants(name)) return;
  const int layers = 4, pages = (context + kKvBlockTokens - 1) / kKvBlockTokens;
  const int d = model.head_dim;
  const int64_t block = 2 * layers * model.kv_heads * kKvBlockTokens * d;
  Half* pool = RandomHalves(runs * pages * block);
  std::vector<int32_t> table(runs * pages);
  std::iota(table.begin(), table.end(), 0);
  std::mt19937 random(3);
  std::shuffle(table.begin(), table.end(), random);
  AttentionPlanLimits limits = {model.heads, model.kv_heads, d, bench->info().num_sms, 0, 8192, 8192};
  Check(AttentionSplitBlocks(d, bench->info().num_sms, &limits.split_blocks));
  if (AttentionChunkSharedBytes(d) <= bench->info().shared_bytes_per_block)
    limits.chunk_blocks = bench->info().num_sms / model.kv_heads * model.kv_heads;
  std::vector<AttentionRun> work;
  for (int i = 0; i < runs; ++i) work.push_back({i * rows, rows, context - rows, i});
  AttentionArgs args = {};
  args.q = RandomHalves(static_cast<size_t>(runs) * rows * model.heads * d);
  args.out = Allocate<Half>(static_cast<size_t>(runs) * rows * model.heads * d);
  args.block_tables = Upload(table);
  args.table_stride = pages;
  args.num_heads = model.heads;
  args.num_kv_heads = model.kv_heads;
  args.head_dim = d;
  args.partials =
      Allocate<float>(AttentionPartialBytes(limits.max_partials, model.kv_heads, d) / sizeof(float));
  args.counters =
      Allocate<int32_t>(AttentionCounterBytes(limits.max_shared_tiles, model.kv_heads) / sizeof(int32_t));
  args.saturations = Allocate<unsigned long long>(1);
  double keys = 0;  // seen by all rows
  for (int row = 0; row < rows; ++row) keys += context - rows + row + 1;
  const double bytes = 2.0 * 2 * runs * context * model.kv_heads * d;
  const double flops = 4.0 * d * model.heads * runs * keys;
  // With wgmma where the card has it, and then without where that is another plan.
  for (limits.has_wgmma = HasWgmma();; limits.has_wgmma = false) {
    AttentionPlan plan(limits);
    plan.Build(work);
    const AttentionWork split = {
        Upload(plan.split_items()),
        Upload(std::vector<int32_t>{static_cast<int32_t>(plan.split_items().size())})};
    const AttentionItem* prefill = Upload(plan.prefill_items());
    const auto num_prefill = static_cast<int32_t>(plan.prefill_items().size());
    const bool chunks = plan.mode() == AttentionMode::kChunks;
    bench->Time(name + (num_prefill > 0 ? (limits.has_wgmma ? " (wgmma)" : " (prefill)")
                        : chunks        ? " (chunks)"
                                        : " (split)"),
                bytes, flops, [&](int i) {
                  args.kv = KvLayerOf(pool, layers, i % layers, model.kv_heads, d);
                  if (chunks) {
                    Check(LaunchAttentionChunk(args, split, limits.chunk_blocks, nullptr));
                  } else if (!plan.split_items().empty()) {
                    Check(LaunchAttentionSplit(args, split, limits.split_blocks, nullptr));
                  }
                  if (num_prefill == 0) return;
                  Check(limits.has_wgmma
                            ? LaunchAttentionPrefillWgmma(args, prefill, num_prefill, limits.num_sms, nullptr)
                            : LaunchAttentionPrefill(args, prefill, num_prefill, nullptr));
                });
    std::printf("    %s\n", plan.ToString().c_str());
    if (!limits.has_wgmma || num_prefill == 0) break;
  }
  for (const void* data : {static_cast<const void*>(pool), static_cast<const void*>(args.q),
                           static_cast<const void*>(args.out), static_cast<const void*>(args.partials)})
    Check(cudaFree(const_cast<void*>(data)));
}

void BenchLayerOps(Bench* bench, int rows) {
  const int hidden = 1536, heads = 12, kv_heads = 2, d = 128, pages = 64;
  const std::string suffix = ", " + std::to_string(rows) + " rows";
  unsigned long long* saturations = Allocate<unsigned long long>(1);
  const float* x = RandomFloats(static_cast<size_t>(rows) * hidden, 1.0f);
  const float* weight = RandomFloats(hidden, 1.0f);
  Half* out = Allocate<Half>(static_cast<size_t>(rows) * hidden);
  bench->Time("rms_norm" + suffix, 6.0 * rows * hidden, 4.0 * rows * hidden, [&](int) {
    Check(LaunchRmsNorm({x, nullptr, weight, out, rows, hidden, 1e-6f, saturations}, nullptr));
  });
  std::vector<int32_t> tokens(rows), positions(rows), slots(rows), tables(static_cast<size_t>(rows) * pages);
  for (int i = 0; i < rows; ++i) {
    tokens[i] = i * 37 % 4096;
    positions[i] = (i * 5 + 700) % (pages * kKvBlockTokens);
    slots[i] = i;
  }
  for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<int32_t>(i % 8192);
  float* residual = Allocate<float>(static_cast<size_t>(rows) * hidden);
  const Half* table = RandomHalves(size_t{4096} * hidden);
  const int32_t* device_tokens = Upload(tokens);
  bench->Time("embedding" + suffix, 6.0 * rows * hidden, 0, [&](int) {
    Check(LaunchEmbedding({device_tokens, device_tokens, table, residual, rows, hidden}, nullptr));
  });
  RopeKvArgs rope = {};
  rope.qkv = RandomFloats(static_cast<size_t>(rows) * (heads + 2 * kv_heads) * d, 1.0f);
  rope.cosines = rope.sines = RandomFloats(static_cast<size_t>(pages) * kKvBlockTokens * d / 2, 0.5f);
  rope.positions = Upload(positions);
  rope.slots = Upload(slots);
  rope.block_tables = Upload(tables);
  rope.table_stride = pages;
  rope.num_rows = rows;
  rope.num_heads = heads;
  rope.num_kv_heads = kv_heads;
  rope.head_dim = d;
  rope.kv = KvLayerOf(Allocate<Half>(size_t{8192} * 2 * kv_heads * kKvBlockTokens * d), 1, 0, kv_heads, d);
  rope.q = out;
  rope.saturations = saturations;
  bench->Time("rope_kv" + suffix, 6.0 * rows * (heads + 2 * kv_heads) * d,
              3.0 * rows * (heads + kv_heads) * d, [&](int) { Check(LaunchRopeKv(rope, nullptr)); });
}

void BenchSampling(Bench* bench, int rows, const std::string& name, const SlotSampling& settings) {
  const std::string full_name = "sampling " + name + ", " + std::to_string(rows) + " rows";
  if (!bench->Wants(full_name)) return;
  const int vocab = 151936;
  const float* logits = RandomFloats(static_cast<size_t>(rows) * vocab, 2.5f);
  std::vector<SampleRow> targets;
  for (int i = 0; i < rows; ++i) targets.push_back({i, 100 + i});
  SamplingArgs args = {};
  args.logits = logits;
  args.row_stride = vocab;
  args.num_rows = rows;
  args.vocab = vocab;
  args.rows = Upload(targets);
  args.slots = Upload(std::vector<SlotSampling>(rows, settings));
  args.last_tokens = Allocate<int32_t>(rows);
  args.tokens = Allocate<int32_t>(rows);
  args.logprobs = Allocate<float>(rows);
  args.workspace = Allocate<uint8_t>(SamplingWorkspaceBytes(rows, vocab));
  bench->Time(full_name, 4.0 * rows * vocab, 0, [&](int) { Check(LaunchSampling(args, nullptr)); });
  Check(cudaFree(const_cast<float*>(logits)));
}

void RunAll(const char* path, const char* filter) {
  Bench bench(path, filter);
  const Model qwen = {"Qwen2.5-1.5B", 12, 2, 128}, smol = {"SmolLM2-135M", 9, 3, 64};
  for (const int context : {16, 256, 1024, 4096}) BenchAttention(&bench, qwen, 1, context, 1);
  for (const int runs : {8, 32, 128}) BenchAttention(&bench, qwen, runs, 1024, 1);
  BenchAttention(&bench, qwen, 32, 4096, 1);
  BenchAttention(&bench, qwen, 1, 32768, 1);
  BenchAttention(&bench, smol, 32, 4096, 1);
  BenchAttention(&bench, qwen, 1, 4096, 4096);
  BenchAttention(&bench, qwen, 1, 4096, 512);
  BenchAttention(&bench, qwen, 1, 1024, 1024);
  BenchAttention(&bench, qwen, 1, 512, 512);
  BenchAttention(&bench, qwen, 4, 256, 256);
  BenchAttention(&bench, qwen, 8, 2048, 512);
  BenchAttention(&bench, smol, 1, 4096, 4096);
  for (const int rows : {1, 32, 256}) BenchLayerOps(&bench, rows);
  for (const int rows : {1, 32, 256}) {
    SlotSampling settings = {};
    BenchSampling(&bench, rows, "greedy", settings);
    settings.logprobs = 1;
    BenchSampling(&bench, rows, "greedy with logprob", settings);
    settings.temperature = settings.top_p = 1.0f;
    BenchSampling(&bench, rows, "temperature with logprob", settings);
    settings.top_k = 50;
    BenchSampling(&bench, rows, "top_k 50 with logprob", settings);
    settings.top_k = 0;
    settings.top_p = 0.95f;
    BenchSampling(&bench, rows, "top_p 0.95 with logprob", settings);
  }
}

}  // namespace
}  // namespace ridge::kernels::cuda

int main(int argc, char** argv) {
  ridge::kernels::cuda::RunAll(argc > 1 ? argv[1] : nullptr, argc > 2 ? argv[2] : "");
  return 0;
}
