#include "bench/roofline/arithmetic.h"

#include <algorithm>

namespace ridge::bench {
namespace {

constexpr double kBytesPerGb = 1e9;
constexpr double kFlopsPerTflop = 1e12;
constexpr int64_t kElementBytes = 2;  // fp16

// Sum of the whole numbers from `first` to `last`.
double SumOf(int64_t first, int64_t last) {
  return static_cast<double>(first + last) * static_cast<double>(last - first + 1) / 2;
}

double Flops(const ModelSize& size, double token_forwards, double outputs, double pairs) {
  return 2.0 * static_cast<double>(size.layer_parameters) * token_forwards +
         2.0 * static_cast<double>(size.head_parameters) * outputs + size.attention_flops_per_pair * pairs;
}

StepFloor Floor(const DataSheet& card, double bytes, double flops) {
  return {bytes / (card.bandwidth_gb_s * kBytesPerGb), flops / (card.fp16_tflops * kFlopsPerTflop)};
}

}  // namespace

ModelSize SizeOf(const worker::ModelConfig& model) {
  ModelSize size{};
  size.parameters = model.num_parameters();
  size.head_parameters = int64_t{model.hidden_size} * model.vocab_size;
  size.layer_parameters = size.parameters - (model.tied_embedding ? 1 : 2) * size.head_parameters;
  size.weight_bytes = size.parameters * kElementBytes;
  size.step_bytes = size.weight_bytes - (model.tied_embedding ? 0 : size.head_parameters * kElementBytes);
  size.kv_bytes_per_token = model.kv_bytes_per_token();
  size.kv_bytes_without_groups = size.kv_bytes_per_token * (model.num_heads / model.num_kv_heads);
  // A multiplication and an addition an element, for the score and for the value.
  size.attention_flops_per_pair = 4.0 * model.q_size() * model.num_layers;
  return size;
}

TokenForwards ForwardsOf(int64_t prompt_tokens, int64_t new_tokens) {
  return {static_cast<int64_t>(SumOf(prompt_tokens, prompt_tokens + new_tokens - 1)),
          prompt_tokens + new_tokens - 1};
}

double FlopsWithoutCache(const ModelSize& size, int64_t prompt_tokens, int64_t new_tokens) {
  double pairs = 0;
  for (int64_t pass = 0; pass < new_tokens; ++pass) pairs += SumOf(1, prompt_tokens + pass);
  const auto forwards = static_cast<double>(ForwardsOf(prompt_tokens, new_tokens).without_cache);
  return Flops(size, forwards, static_cast<double>(new_tokens), pairs);
}

double FlopsWithCache(const ModelSize& size, int64_t prompt_tokens, int64_t new_tokens) {
  const int64_t forwards = ForwardsOf(prompt_tokens, new_tokens).with_cache;
  return Flops(size, static_cast<double>(forwards), static_cast<double>(new_tokens), SumOf(1, forwards));
}

StepFloor DecodeFloor(const ModelSize& size, const DataSheet& card, int64_t batch, int64_t context) {
  const auto sequences = static_cast<double>(batch), positions = static_cast<double>(context);
  const double bytes = static_cast<double>(size.step_bytes) +
                       sequences * positions * static_cast<double>(size.kv_bytes_per_token);
  return Floor(card, bytes, Flops(size, sequences, sequences, sequences * positions));
}

StepFloor PrefillFloor(const ModelSize& size, const DataSheet& card, int64_t prompt_tokens) {
  const auto tokens = static_cast<double>(prompt_tokens);
  const double bytes =
      static_cast<double>(size.step_bytes) + tokens * static_cast<double>(size.kv_bytes_per_token);
  return Floor(card, bytes, Flops(size, tokens, 1, SumOf(1, prompt_tokens)));
}

double RidgePoint(const DataSheet& card) {
  return card.fp16_tflops * kFlopsPerTflop / (card.bandwidth_gb_s * kBytesPerGb);
}

int64_t PositionsIn(const ModelSize& size, double bytes) {
  return static_cast<int64_t>(bytes / static_cast<double>(size.kv_bytes_per_token));
}

}  // namespace ridge::bench
