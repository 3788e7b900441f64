#include "bench/roofline/hardware_page.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace ridge::bench {
namespace {

constexpr int64_t kNewTokens = 256;
constexpr int64_t kPrompts[] = {16, 64, 256, 1024, 4096};
constexpr double kGiB = 1073741824.0;

// 1234567 as 1,234,567.
std::string Grouped(int64_t value) {
  const std::string digits = absl::StrCat(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string ModelSection(const worker::ModelConfig& model, const ModelSize& size) {
  std::string text = absl::StrCat(
      "## The model\n\n", model.name, ": ", model.num_layers, " layers, hidden ", model.hidden_size, ", ",
      model.num_heads, " query and ", model.num_kv_heads, " key/value heads of ", model.head_dim, ", MLP ",
      model.mlp_size, ", vocabulary ", Grouped(model.vocab_size),
      model.tied_embedding ? ", tied embedding" : "", ".\n\n| quantity | value | from |\n|---|---|---|\n");
  absl::StrAppendFormat(&text, "| parameters | %s | stored once each |\n", Grouped(size.parameters));
  absl::StrAppendFormat(&text, "| of the layers | %s | what each token is multiplied with |\n",
                        Grouped(size.layer_parameters));
  absl::StrAppendFormat(&text, "| of the output matrix | %s | once for each token that is sampled |\n",
                        Grouped(size.head_parameters));
  absl::StrAppendFormat(&text, "| weights | %.2f GB (%.2f GiB) | 2 bytes each |\n", size.weight_bytes / 1e9,
                        size.weight_bytes / kGiB);
  absl::StrAppendFormat(
      &text, "| K/V of a token | %s bytes (%.1f KiB) | K and V x 2 bytes x %d layers x %d heads x %d |\n",
      Grouped(size.kv_bytes_per_token), size.kv_bytes_per_token / 1024.0, model.num_layers,
      model.num_kv_heads, model.head_dim);
  absl::StrAppendFormat(&text, "| the same without grouped queries | %.1f KiB | %d times as much |\n",
                        size.kv_bytes_without_groups / 1024.0, model.num_heads / model.num_kv_heads);
  return text;
}

std::string CardSection(const ModelSize& size, const DataSheet& card) {
  const double free_bytes = card.visible_gib * kGiB - static_cast<double>(size.weight_bytes);
  const int64_t positions = PositionsIn(size, free_bytes);
  const int64_t whole = kPrompts[4] + kNewTokens;
  const double groups =
      static_cast<double>(size.kv_bytes_without_groups) / static_cast<double>(size.kv_bytes_per_token);
  const double step_s = DecodeFloor(size, card, 1, 0).seconds();
  std::string text = absl::StrCat("\n## ", card.name, "\n\n| quantity | value | from |\n|---|---|---|\n");
  absl::StrAppendFormat(
      &text,
      "| floor of a decode step at batch 1 | %.2f ms = %.0f tokens/s | %.2f GB of weights at %g GB/s |\n",
      step_s * 1e3, 1 / step_s, size.step_bytes / 1e9, card.bandwidth_gb_s);
  absl::StrAppendFormat(
      &text, "| ridge point | %.0f operations a byte: about %.0f tokens in a pass | %g TFLOPS / %g GB/s |\n",
      RidgePoint(card), RidgePoint(card), card.fp16_tflops, card.bandwidth_gb_s);
  absl::StrAppendFormat(&text, "| positions beside the weights | %s | %.2f GiB free of %.2f GiB visible |\n",
                        Grouped(positions), free_bytes / kGiB, card.visible_gib);
  absl::StrAppendFormat(
      &text, "| requests of %d + %d tokens among them | %d | %d without grouped queries |\n", kPrompts[4],
      kNewTokens, positions / whole, static_cast<int64_t>(static_cast<double>(positions) / groups) / whole);
  absl::StrAppendFormat(&text, "| positions in a pool of 2 GiB | %s | |\n",
                        Grouped(PositionsIn(size, 2 * kGiB)));
  absl::StrAppend(&text,
                  "\n| prompt | token forwards, no cache | with cache | recomputed | floor of TTFT, ms | "
                  "floor of a decode "
                  "step, ms | FLOPs of a run, no cache | with cache |\n|---|---|---|---|---|---|---|---|\n");
  for (const int64_t prompt : kPrompts) {
    const TokenForwards forwards = ForwardsOf(prompt, kNewTokens);
    absl::StrAppendFormat(
        &text, "| %d | %s | %s | %.1f %% | %.2f | %.2f | %.3g | %.3g |\n", prompt,
        Grouped(forwards.without_cache), Grouped(forwards.with_cache),
        100.0 * (1 - static_cast<double>(forwards.with_cache) / static_cast<double>(forwards.without_cache)),
        PrefillFloor(size, card, prompt).seconds() * 1e3,
        DecodeFloor(size, card, 1, prompt + kNewTokens / 2).seconds() * 1e3,
        FlopsWithoutCache(size, prompt, kNewTokens), FlopsWithCache(size, prompt, kNewTokens));
  }
  absl::StrAppendFormat(
      &text, "\n%d new tokens each; a decode step with the context half way through them.\n", kNewTokens);
  return text;
}

std::string CardsSection(const ModelSize& size) {
  std::string text =
      "\n## Beside other cards\n\n| card | memory, GiB | GB/s | fp16 TFLOPS | W | decode floor, ms | "
      "tokens/s | "
      "tokens/s a W | ridge point | requests of 4,352 | from "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const DataSheet& card : DataSheets()) {
    const double free_bytes = card.visible_gib * kGiB - static_cast<double>(size.weight_bytes);
    const double step_s = DecodeFloor(size, card, 1, 0).seconds();
    const int64_t requests = free_bytes > 0 ? PositionsIn(size, free_bytes) / (kPrompts[4] + kNewTokens) : 0;
    absl::StrAppendFormat(&text, "| %s | %.1f | %g | %g | %g | %.2f | %.0f | %.2f | %.0f | %d | %s |\n",
                          card.name, card.visible_gib, card.bandwidth_gb_s, card.fp16_tflops, card.power_w,
                          step_s * 1e3, 1 / step_s, 1 / step_s / card.power_w, RidgePoint(card), requests,
                          card.source);
  }
  absl::StrAppend(&text,
                  "\nHow to choose: one stream's speed is bandwidth over weights, so between two cards with "
                  "the same memory the one "
                  "with more bandwidth answers faster (an A10 twice as fast as an L4, at twice the power: "
                  "the same tokens a watt). "
                  "Arithmetic counts for prompts, and for batches beyond the ridge point; memory for how "
                  "many contexts run at "
                  "once. An A10G has the A10's memory and bandwidth, and little more than half its tensor "
                  "operations: measurements "
                  "name the card, since the two are easily taken for one another.\n");
  return text;
}

std::string MeasuredSection(const ModelSize& size, const DataSheet& card,
                            const std::vector<Measured>& measured) {
  if (measured.empty()) return "";
  std::string text =
      "\n## Measured beside predicted\n\nLast TTFT: until every sequence of a batch had its first token. "
      "MBU: "
      "bytes that a decode step has to read / (ITL x bandwidth). MFU: operations of the prompts / (last TTFT "
      "x "
      "peak); an engine that decodes meanwhile does more than these.\n\n| run | last TTFT, ms | its floor | "
      "MFU "
      "| ITL, ms | its floor | MBU |\n|---|---|---|---|---|---|---|\n";
  for (const Measured& run : measured) {
    const StepFloor prefill = PrefillFloor(size, card, run.prompt_tokens);
    const StepFloor decode = DecodeFloor(size, card, run.batch, run.prompt_tokens + run.new_tokens / 2);
    const auto batch = static_cast<double>(run.batch);
    const double prefill_s = std::max(prefill.memory_s, prefill.compute_s * batch);
    absl::StrAppendFormat(&text, "| %s | %.2f | %.2f | %.3f | ", run.what, run.last_ttft_s * 1e3,
                          prefill_s * 1e3, prefill.compute_s * batch / run.last_ttft_s);
    if (run.itl_s > 0) {
      absl::StrAppendFormat(&text, "%.3f | %.3f | %.3f |\n", run.itl_s * 1e3, decode.seconds() * 1e3,
                            decode.memory_s / run.itl_s);
    } else {
      absl::StrAppend(&text, "| | |\n");
    }
  }
  return text;
}

}  // namespace

std::string HardwarePage(const worker::ModelConfig& model, const DataSheet& card,
                         const std::vector<Measured>& measured) {
  const ModelSize size = SizeOf(model);
  return absl::StrCat("# ", model.name, " on ", card.name,
                      "\n\nWritten by `ridge-bench roofline`; fp16 weights and K/V.\n\n",
                      ModelSection(model, size), CardSection(size, card), CardsSection(size),
                      MeasuredSection(size, card, measured));
}

}  // namespace ridge::bench
