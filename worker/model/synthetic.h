// Models with the shapes of real ones and made-up weights: for benchmarks and tests on machines without the
// files.
//
// Each element is a function of (seed, role, layer, index) by integer arithmetic, one fp32 multiplication and
// one rounding to fp16, so that any device can produce the same bits:
//   key     = Mix(seed + (role << 32) + layer)
//   bits    = Mix(key + index * 0x9E3779B97F4A7C15)
//   integer = int(bits >> 40) - 2^23                                  24 bits, uniform in [-2^23, 2^23)
//   element = fp16(float(integer) * scale)                            matrices and biases, scale by role
//   element = fp16(float(2^23 + (integer >> 3)) * 2^-23 * m)          norms: m (1 +- 1/8)
// m is 1.5 for the norms of q and k, otherwise 1. Mix is the finaliser of SplitMix64; >> is arithmetic on
// signed numbers; index = row * cols + col. Scales keep every layer's contribution near 1 and the embedding
// small beside it: a tied embedding would otherwise repeat the last token.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

class SyntheticSource : public WeightSource {
 public:
  // The configuration must be valid.
  explicit SyntheticSource(ModelConfig config, uint64_t seed = 0);

  const ModelConfig& config() const override { return config_; }
  absl::Status ReadRows(TensorId id, int64_t row_begin, int64_t row_count,
                        absl::Span<Half> out) const override;
  std::optional<GeneratedTensor> Generated(TensorId id) const override;
  std::string Fingerprint() const override;

 private:
  const ModelConfig config_;
  const uint64_t seed_;
};

// A shape by its name: smollm2-135m, llama-3.2-1b, qwen2.5-0.5b, -1.5b, -3b, -7b, qwen3-0.6b. Without an
// end-of-sequence token: generation runs to its limit. NOT_FOUND listing the names.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenSynthetic(absl::string_view name);

}  // namespace ridge::worker
