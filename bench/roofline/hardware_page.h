// The arithmetic of one model on one card, beside other cards, as a page in Markdown; and what was measured
// beside what it predicts. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/roofline/arithmetic.h"
#include "bench/roofline/data_sheet.h"
#include "worker/model/model_config.h"

namespace ridge::bench {

// What a batch of equal requests took.
struct Measured {
  std::string what;  // "cached, p256-x1"
  int64_t batch;
  int64_t prompt_tokens;
  int64_t new_tokens;  // of each
  double last_ttft_s;  // until all of the batch had a token: what all prompts took; median over runs
  double itl_s;        // median; 0: none
};

std::string HardwarePage(const worker::ModelConfig& model, const DataSheet& card,
                         const std::vector<Measured>& measured);

}  // namespace ridge::bench
