// The arithmetic of a decoder on a card: bytes, operations, and what follows from them. Pure; fp16 weights
// and K/V.
//
// Definitions are those of the series: a run of P prompt and G new tokens puts tokens through the model G
// times; without a cache each pass takes all tokens so far, with one only those that are new.
#pragma once

#include <cstdint>

#include "bench/roofline/data_sheet.h"
#include "worker/model/model_config.h"

namespace ridge::bench {

struct ModelSize {
  int64_t parameters;        // stored; a tied matrix once
  int64_t layer_parameters;  // all but embedding and output matrix, norms and biases included, as the series
                             // counts
  int64_t head_parameters;   // of the output matrix
  int64_t weight_bytes;      // all parameters
  int64_t step_bytes;        // what a step reads of them: layers, norms, biases and output matrix, not the
                             // embedding's rows
  int64_t kv_bytes_per_token;
  int64_t kv_bytes_without_groups;  // if every query head had a key and a value head of its own
  double attention_flops_per_pair;  // of a query position and a position that it sees, all layers and heads
};
ModelSize SizeOf(const worker::ModelConfig& model);

struct TokenForwards {
  int64_t without_cache;  // sum of P, P + 1, ..., P + G - 1
  int64_t with_cache;     // P + G - 1: the last token is never put through
};
TokenForwards ForwardsOf(int64_t prompt_tokens, int64_t new_tokens);

// 2 x layer parameters x token forwards + 2 x head parameters x G + attention over all pairs.
double FlopsWithoutCache(const ModelSize& size, int64_t prompt_tokens, int64_t new_tokens);
double FlopsWithCache(const ModelSize& size, int64_t prompt_tokens, int64_t new_tokens);

// A decode step of `batch` sequences with `context` tokens each: the larger of what memory and arithmetic
// take.
struct StepFloor {
  double memory_s;   // (weights + K/V of all contexts) / bandwidth
  double compute_s;  // operations / peak
  double seconds() const { return memory_s > compute_s ? memory_s : compute_s; }
};
StepFloor DecodeFloor(const ModelSize& size, const DataSheet& card, int64_t batch, int64_t context);
// A prompt's pass in one piece.
StepFloor PrefillFloor(const ModelSize& size, const DataSheet& card, int64_t prompt_tokens);

// Operations a byte at which a card turns from being bound by memory to being bound by arithmetic; for fp16
// weights that is about the number of tokens in a pass.
double RidgePoint(const DataSheet& card);

// Positions whose K/V fit `bytes`, and requests of so many positions among them.
int64_t PositionsIn(const ModelSize& size, double bytes);

}  // namespace ridge::bench
