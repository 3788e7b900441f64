#include "worker/backend/cpu/cpu_backend.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/hash.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/layer_ops.h"
#include "kernels/cpu/target.h"
#include "kernels/logit_controls.h"
#include "kernels/order.h"
#include "kernels/sampling.h"

namespace ridge::worker {
namespace {

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(CPU_COUNT(&set), 1);
}

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

// Equal ids promise equal bits: model, types and every constant that fixes the order of a sum. Instruction
// set and threads are not in it, since they change nothing.
std::string NumericsId(const WeightSource& source) {
  const ModelConfig& config = source.config();
  Sha256 hash;
  hash.Update(absl::StrFormat("cpu 3 fp16 lanes=%d norm=%d chunk=%d slice=%d dot=%d,%d,%d model=%s",
                              kernels::kVirtualLanes, kernels::kNormGroup, kernels::kAttentionChunk,
                              kernels::kVocabularySlice, kernels::DotChunk(config.hidden_size),
                              kernels::DotChunk(config.q_size()), kernels::DotChunk(config.mlp_size),
                              source.Fingerprint()));
  return hash.HexDigest().substr(0, 32);
}

kernels::SamplerSettings ToSettings(const SamplingParams& params) {
  kernels::SamplerSettings settings;
  settings.temperature = params.temperature;
  settings.top_p = params.top_p;
  settings.top_k = params.top_k;
  settings.min_p = params.min_p;
  settings.seed = params.seed;
  settings.choice = params.choice;
  return settings;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(const WeightSource& source,
                                                               const CpuOptions& options) {
  if (kernels::cpu::TargetName().empty()) {
    return absl::UnimplementedError("the processor lacks what the kernels need (on x86: AVX2, FMA and F16C)");
  }
  const int32_t head_dim = source.config().head_dim;
  if (head_dim % kernels::kVirtualLanes != 0 || head_dim > kernels::cpu::kMaxAttentionHeadDim) {
    return absl::UnimplementedError(absl::StrFormat(
        "%s: a head_dim of %d is not supported on the CPU, only multiples of %d up to %d",
        source.config().name, head_dim, kernels::kVirtualLanes, kernels::cpu::kMaxAttentionHeadDim));
  }
  const int threads = options.threads > 0 ? options.threads : AvailableCores();
  auto pool = std::make_unique<kernels::cpu::ThreadPool>(threads, options.pin_threads);
  absl::StatusOr<PackedWeights> weights = PackedWeights::Load(source, pool.get());
  if (!weights.ok()) return weights.status();
  return std::unique_ptr<CpuBackend>(new CpuBackend(source, options, std::move(pool), *std::move(weights)));
}

CpuBackend::CpuBackend(const WeightSource& source, const CpuOptions& options,
                       std::unique_ptr<kernels::cpu::ThreadPool> pool, PackedWeights weights)
    : config_(source.config()), options_(options), pool_(std::move(pool)), weights_(std::move(weights)) {
  info_.device = absl::StrFormat("cpu: %s (%s, %d threads)", ProcessorName(), kernels::cpu::TargetName(),
                                 pool_->num_threads());
  info_.numerics_id = NumericsId(source);
  info_.kv_block_bytes = KvPool::BlockBytes(config_);
  info_.memory_bytes = PhysicalMemory();
  info_.weight_bytes = weights_.bytes();
  info_.vocab_size = config_.vocab_size;
  info_.extended_sampling = true;
}

CpuBackend::~CpuBackend() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (compute_thread_.joinable()) compute_thread_.join();
}

absl::Status CpuBackend::Reserve(int32_t num_blocks, const BackendLimits& limits) {
  RIDGE_CHECK(forward_ == nullptr && num_blocks >= 1 && limits.max_slots >= 1 && limits.max_step_rows >= 1);
  absl::StatusOr<KvPool> kv = KvPool::Allocate(config_, num_blocks);
  if (!kv.ok()) return absl::Status(kv.status().code(), absl::StrCat("KV cache: ", kv.status().message()));
  limits_ = limits;
  slots_ =
      std::make_unique<SlotTable>(limits.max_slots, num_blocks, config_.context_length, config_.vocab_size);
  forward_ = std::make_unique<ForwardPass>(config_, &weights_, pool_.get(), *std::move(kv),
                                           limits.max_step_rows, options_.split_attention);
  rows_.Reserve(limits.max_step_rows);
  sampling_scratch_.resize(static_cast<size_t>(pool_->num_threads()));
  for (SamplingScratch& scratch : sampling_scratch_) {
    scratch.ids.reserve(static_cast<size_t>(config_.vocab_size));
    scratch.logits.reserve(static_cast<size_t>(config_.vocab_size));
  }
  compute_thread_ = std::thread([this] { Compute(); });
  return absl::OkStatus();
}

StepTicket CpuBackend::Submit(const StepPlan& plan) {
  RIDGE_CHECK(forward_ != nullptr);
  {
    std::lock_guard lock(mutex_);
    if (unused_.empty()) {
      unused_.push_back(std::make_unique<Step>());
      done_.reserve(++num_steps_);
    }
    std::unique_ptr<Step> step = std::move(unused_.back());
    unused_.pop_back();
    step->plan = plan;
    step->result.outputs.reserve(static_cast<size_t>(limits_.max_step_rows));
    step->result.top.reserve(static_cast<size_t>(limits_.max_step_rows) * kMaxTopLogprobs);
    waiting_.push_back(std::move(step));
  }
  changed_.notify_all();
  return submitted_++;
}

void CpuBackend::WaitFor(StepTicket ticket, int64_t most_ns) {
  RIDGE_CHECK(ticket == collected_ && collected_ < submitted_);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(most_ns), [this] { return !done_.empty(); });
}

absl::StatusOr<StepResult> CpuBackend::Collect(StepTicket ticket) {
  RIDGE_CHECK(ticket == collected_ && collected_ < submitted_);
  ++collected_;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !done_.empty(); });
  std::unique_ptr<Step> step = std::move(done_.front());
  done_.erase(done_.begin());
  StepResult result = step->result;
  unused_.push_back(std::move(step));
  return result;
}

void CpuBackend::Compute() {
  if (options_.pin_threads) kernels::cpu::PinToCore(0);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    std::unique_ptr<Step> step = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    lock.unlock();
    RunStep(step->plan, &step->result);
    lock.lock();
    done_.push_back(std::move(step));
    changed_.notify_all();
  }
}

void CpuBackend::RunStep(const StepPlan& plan, StepResult* result) {
  slots_->Apply(plan);
  rows_.Build(plan, config_.vocab_size, config_.context_length, limits_.max_step_rows, slots_.get());
  CountRows(plan, result);
  result->outputs.resize(rows_.outputs.size());
  result->top.resize(static_cast<size_t>(rows_.num_top));
  result->logits.clear();
  result->launches = 0;
  for (const BlockCopy& copy : plan.copies) forward_->CopyBlock(copy);
  if (rows_.num_rows() == 0) return;
  forward_->Run(rows_);
  ++result->launches;
  if (plan.return_logits)
    result->logits.reserve(rows_.outputs.size() * static_cast<size_t>(config_.vocab_size));
  for (size_t begin = 0; begin < rows_.outputs.size(); begin += ForwardPass::kLogitRows) {
    const auto outputs = absl::MakeConstSpan(rows_.outputs).subspan(begin, ForwardPass::kLogitRows);
    const absl::Span<const float> logits = forward_->Logits(outputs);
    ++result->launches;
    Sample(plan, begin, outputs.size(), logits, result);
    if (plan.return_logits) result->logits.insert(result->logits.end(), logits.begin(), logits.end());
  }
  for (size_t i = 0; i < rows_.outputs.size(); ++i) {
    const OutputRow& output = rows_.outputs[i];
    if (output.target >= 0) continue;
    output.slot->last_token = result->outputs[i].token;
    output.slot->controls.Count(result->outputs[i].token);
  }
  saturations_.store(forward_->saturations(), std::memory_order_relaxed);
}

void CpuBackend::Sample(const StepPlan& plan, size_t begin, size_t count, absl::Span<const float> logits,
                        StepResult* result) {
  const size_t vocab = static_cast<size_t>(config_.vocab_size);
  const auto sample_share = [&](int thread, int num_threads) {
    const auto share = kernels::cpu::ShareOf(static_cast<int64_t>(count), thread, num_threads);
    for (size_t i = static_cast<size_t>(share.begin); i < static_cast<size_t>(share.end); ++i) {
      const absl::Span<const float> row = logits.subspan(i * vocab, vocab);
      const OutputRow& output = rows_.outputs[begin + i];
      SamplingScratch* scratch = &sampling_scratch_[static_cast<size_t>(thread)];
      const TokenId token = output.target >= 0 ? output.target : SampleToken(plan, output, row, scratch);
      Report(output, token, row, scratch, &result->outputs[begin + i],
             result->top.data() + output.top_offset);
    }
  };
  if (count == 1) return sample_share(0, 1);
  ++result->launches;
  pool_->Run([&](int thread) { sample_share(thread, pool_->num_threads()); });
}

TokenId CpuBackend::SampleToken(const StepPlan& plan, const OutputRow& output, absl::Span<const float> logits,
                                SamplingScratch* scratch) const {
  const Slot& slot = *output.slot;
  const int32_t position = output.position + 1;
  if (output.num_banned > 0 || slot.controls.ChangeLogits(position)) {
    scratch->logits.assign(logits.begin(), logits.end());
    const auto banned =
        absl::MakeConstSpan(plan.banned)
            .subspan(static_cast<size_t>(output.banned_begin), static_cast<size_t>(output.num_banned));
    slot.controls.Apply(position, banned, absl::MakeSpan(scratch->logits));
    logits = scratch->logits;
  }
  return kernels::SampleToken(logits, ToSettings(slot.sampling), static_cast<uint32_t>(position),
                              &scratch->ids);
}

// Log-probabilities are those of the raw logits.
void CpuBackend::Report(const OutputRow& output, TokenId token, absl::Span<const float> logits,
                        SamplingScratch* scratch, RowOutput* row, TokenLogprob* top) const {
  *row = {token, 0.0f, output.num_top};
  if (output.target < 0 && !output.slot->sampling.logprobs) return;
  const float log_sum = kernels::cpu::LogSumExp(logits.data(), static_cast<int64_t>(logits.size()));
  row->logprob = logits[static_cast<size_t>(token)] - log_sum;
  kernels::TopIds(logits, output.num_top, &scratch->ids);
  for (const int32_t id : scratch->ids) *top++ = {id, logits[static_cast<size_t>(id)] - log_sum};
}

}  // namespace ridge::worker
