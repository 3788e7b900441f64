#include "worker/backend/cuda/control_memory.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace ridge::worker {
namespace {

namespace cuda = kernels::cuda;

static_assert(cuda::kMaxTopLogprobs == kMaxTopLogprobs && cuda::kMaxBiases == kMaxTokenBiases);

// Of a slot's masks, in this order.
constexpr int64_t kMasks = 3;
constexpr int64_t kBannedMask = 2;

void SetBits(const TokenId* ids, size_t count, bool value, uint32_t* words) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bit = 1u << (ids[i] % 32);
    uint32_t& word = words[ids[i] / 32];
    word = value ? word | bit : word & ~bit;
  }
}

absl::Status Copy(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream),
                    "sampling controls");
}

}  // namespace

// Takes pieces of the staging memory one after the other.
class ControlMemory::Staging {
 public:
  explicit Staging(char* at) : at_(at) {}

  template <typename T>
  T* Take(int64_t count) {
    T* taken = reinterpret_cast<T*>(at_);
    at_ += count * static_cast<int64_t>(sizeof(T));
    return taken;
  }

 private:
  char* at_;
};

absl::StatusOr<ControlMemory> ControlMemory::Create(int32_t max_slots, int32_t vocab_size, int64_t row_stride,
                                                    cudaStream_t stream) {
  ControlMemory memory;
  memory.vocab_size_ = vocab_size;
  memory.slots_.resize(static_cast<size_t>(max_slots));
  const int64_t slots = max_slots;
  const struct {
    DeviceMemory* memory;
    int64_t bytes;
  } parts[] = {{&memory.occurrences_, slots * vocab_size * 4},
               {&memory.masks_, slots * kMasks * memory.mask_words() * 4},
               {&memory.biases_, slots * kMaxTokenBiases * static_cast<int64_t>(sizeof(kernels::LogitBias))},
               {&memory.logits_, slots * row_stride * 4}};
  for (const auto& part : parts) {
    absl::StatusOr<DeviceMemory> allocated = DeviceMemory::Allocate(part.bytes, "sampling controls");
    if (!allocated.ok()) return allocated.status();
    *part.memory = *std::move(allocated);
    absl::Status status =
        CudaStatus(cudaMemsetAsync(part.memory->as<void>(), 0, static_cast<size_t>(part.bytes), stream),
                   "sampling controls");
    if (!status.ok()) return status;
  }
  return memory;
}

cuda::SlotControls ControlMemory::pointers() const {
  return {occurrences_.as<uint32_t>(), masks_.as<uint32_t>(), biases_.as<kernels::LogitBias>(),
          logits_.as<float>()};
}

int64_t ControlMemory::StagingBytes(const StepPlan& plan) const {
  int64_t words = 0;  // of 4 bytes
  for (const SlotAttach& attach : plan.attaches) {
    if (!HasControls(attach)) continue;
    words +=
        kMasks * mask_words() + static_cast<int64_t>(2 * attach.controls.bias.size() + attach.history.size());
  }
  for (const Segment& segment : plan.segments) {
    if (segment.num_banned > 0) words += kMasks * mask_words();
  }
  return words * 4;
}

int64_t ControlMemory::UsualStagingBytes(int64_t context_length) const {
  constexpr size_t kSequences = 8;
  const int64_t words = 2 * kMasks * mask_words() + 2 * int64_t{kMaxTokenBiases} + context_length;
  return 4 * words * static_cast<int64_t>(std::min(kSequences, slots_.size()));
}

absl::Status ControlMemory::Apply(const StepPlan& plan, PinnedMemory* memory, cudaStream_t stream) {
  const int64_t bytes = StagingBytes(plan);
  if (bytes > memory->bytes()) {
    absl::StatusOr<PinnedMemory> larger = PinnedMemory::Allocate(bytes, "sampling controls");
    if (!larger.ok()) return larger.status();
    *memory = *std::move(larger);
  }
  Staging staging(memory->as<char>());
  for (const SlotAttach& attach : plan.attaches) {
    if (absl::Status status = Attach(attach, &staging, stream); !status.ok()) return status;
  }
  for (const Segment& segment : plan.segments) {
    if (segment.num_outputs == 0) continue;
    if (absl::Status status = Ban(plan, segment, &staging, stream); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ControlMemory::Attach(const SlotAttach& attach, Staging* staging, cudaStream_t stream) {
  SlotState& slot = slots_[static_cast<size_t>(attach.slot)];
  slot = {};
  if (!HasControls(attach)) return absl::OkStatus();
  slot.has_masks = true;
  const TokenControls& controls = attach.controls;
  RIDGE_CHECK(controls.bias.size() <= static_cast<size_t>(kMaxTokenBiases));

  uint32_t* masks = staging->Take<uint32_t>(kMasks * mask_words());
  std::fill_n(masks, mask_words(), controls.allowed_ids.empty() ? ~0u : 0u);
  std::fill_n(masks + mask_words(), (kMasks - 1) * mask_words(), 0u);
  SetBits(controls.allowed_ids.data(), controls.allowed_ids.size(), true, masks);
  SetBits(controls.banned_ids.data(), controls.banned_ids.size(), false, masks);
  SetBits(controls.late_ids.data(), controls.late_ids.size(), true, masks + mask_words());
  absl::Status status = Copy(masks_.as<uint32_t>() + attach.slot * kMasks * mask_words(), masks,
                             kMasks * mask_words() * 4, stream);

  auto* biases = staging->Take<kernels::LogitBias>(static_cast<int64_t>(controls.bias.size()));
  for (size_t i = 0; i < controls.bias.size(); ++i) biases[i] = {controls.bias[i].id, controls.bias[i].bias};
  status.Update(Copy(biases_.as<kernels::LogitBias>() + int64_t{attach.slot} * kMaxTokenBiases, biases,
                     static_cast<int64_t>(controls.bias.size() * sizeof(kernels::LogitBias)), stream));
  if (!attach.sampling.has_penalties() || !status.ok()) return status;

  const auto count = static_cast<int32_t>(attach.history.size());
  int32_t* history = staging->Take<int32_t>(count);
  std::copy(attach.history.begin(), attach.history.end(), history);
  uint32_t* occurrences = occurrences_.as<uint32_t>() + int64_t{attach.slot} * vocab_size_;
  status =
      CudaStatus(cudaMemsetAsync(occurrences, 0, static_cast<size_t>(vocab_size_) * 4, stream), "penalties");
  status.Update(CudaStatus(cuda::LaunchCountTokens(history, count, attach.prompt_tokens, occurrences, stream),
                           "penalties"));
  return status;
}

absl::Status ControlMemory::Ban(const StepPlan& plan, const Segment& segment, Staging* staging,
                                cudaStream_t stream) {
  SlotState& slot = slots_[static_cast<size_t>(segment.slot)];
  uint32_t* device = masks_.as<uint32_t>() + segment.slot * kMasks * mask_words();
  uint32_t* device_banned = device + kBannedMask * mask_words();
  if (segment.num_banned == 0) {
    if (!slot.has_banned) return absl::OkStatus();
    slot.has_banned = false;
    return CudaStatus(cudaMemsetAsync(device_banned, 0, static_cast<size_t>(mask_words()) * 4, stream),
                      "banned tokens");
  }
  uint32_t* masks = staging->Take<uint32_t>(kMasks * mask_words());
  std::fill_n(masks, mask_words(), ~0u);
  std::fill_n(masks + mask_words(), (kMasks - 1) * mask_words(), 0u);
  uint32_t* banned = masks + kBannedMask * mask_words();
  SetBits(plan.banned.data() + segment.banned_offset, static_cast<size_t>(segment.num_banned), true, banned);
  slot.has_banned = true;
  if (slot.has_masks) return Copy(device_banned, banned, mask_words() * 4, stream);
  slot.has_masks = true;
  return Copy(device, masks, kMasks * mask_words() * 4, stream);
}

}  // namespace ridge::worker
