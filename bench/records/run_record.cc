#include "bench/records/run_record.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/records/csv.h"
#include "bench/records/latency.h"
#include "common/hash.h"
#include "nlohmann/json.hpp"

namespace ridge::bench {
namespace {

using nlohmann::ordered_json;
using Columns = std::vector<std::pair<const char*, ordered_json>>;

constexpr size_t kHashDigits = 8;

double Rounded(double value, double steps) {
  return std::round(value * steps) / steps;
}
double Seconds(double value) {
  return Rounded(value, 1e6);
}
double Milliseconds(double value) {
  return Rounded(value, 1e4);
}
double Rate(double value) {
  return Rounded(value, 1e4);
}

// A parameter that is off has no value, as the series writes it.
ordered_json Unless(bool off, ordered_json value) {
  return off ? ordered_json() : std::move(value);
}

Columns ColumnsOf(const RunContext& context, const RunRecord& record) {
  const RunFigures figures = FiguresOf(record);
  const bool greedy = record.temperature == 0;
  return {{"schema", kRecordSchema},
          {"bench_id", context.bench_id},
          {"run_index", record.run_index},
          {"is_warmup", record.run_index < 0},
          {"ts_utc", record.ts_utc},
          {"ridge_version", context.version},
          {"commit", context.commit},
          {"engine", context.engine},
          {"engine_params", context.engine_params},
          {"model", context.model},
          {"dtype", context.dtype},
          {"device", context.device},
          {"device_name", context.device_name},
          {"load_s", Rate(context.load_s)},
          {"workload", record.workload},
          {"prompt_label", record.prompt_label},
          {"prompt_tokens", record.prompt_tokens},
          {"max_new_tokens", record.max_new_tokens},
          {"batch_size", record.batch_size},
          {"batch_id", record.batch_id},
          {"sequence_index", record.sequence_index},
          {"temperature", Unless(greedy, record.temperature)},
          {"top_k", Unless(record.top_k == 0, record.top_k)},
          {"top_p", Unless(record.top_p == 1, record.top_p)},
          {"min_p", Unless(record.min_p == 0, record.min_p)},
          {"seed", record.seed},
          {"stop_on_eos", record.stop_on_eos},
          {"completion_tokens", record.ids.size()},
          {"stopped_reason", record.stopped_reason},
          {"ttft_s", Seconds(figures.ttft_s)},
          {"total_s", Seconds(record.total_s)},
          {"decode_s", Seconds(figures.decode_s)},
          {"decode_tps", Rate(figures.decode_tps)},
          {"e2e_tps", Rate(figures.e2e_tps)},
          {"itl_p50_ms", Milliseconds(figures.itl_p50_ms)},
          {"itl_p95_ms", Milliseconds(figures.itl_p95_ms)},
          {"peak_mem_bytes", Unless(record.peak_mem_bytes == 0, record.peak_mem_bytes)},
          {"peak_mem_source", record.peak_mem_source},
          {"output_sha8", OutputHash(record.ids)},
          {"notes", record.notes}};
}

std::string CsvText(const ordered_json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return value.dump();
}

std::vector<int64_t> GapsUs(absl::Span<const double> token_s) {
  std::vector<int64_t> gaps;
  int64_t before = 0;
  for (const double at : token_s) {
    const auto us = static_cast<int64_t>(std::llround(at * 1e6));
    gaps.push_back(us - before);
    before = us;
  }
  return gaps;
}

}  // namespace

RunFigures FiguresOf(const RunRecord& record) {
  RunFigures figures;
  if (record.token_s.empty()) return figures;
  const auto tokens = static_cast<double>(record.token_s.size());
  figures.ttft_s = record.token_s.front();
  figures.decode_s = record.total_s - figures.ttft_s;
  if (tokens > 1 && figures.decode_s > 0) figures.decode_tps = (tokens - 1) / figures.decode_s;
  if (record.total_s > 0) figures.e2e_tps = tokens / record.total_s;
  std::vector<double> gaps_ms;
  for (size_t i = 1; i < record.token_s.size(); ++i) {
    gaps_ms.push_back((record.token_s[i] - record.token_s[i - 1]) * 1e3);
  }
  if (!gaps_ms.empty()) {
    figures.itl_p50_ms = Percentile(gaps_ms, 50);
    figures.itl_p95_ms = Percentile(gaps_ms, 95);
  }
  return figures;
}

std::string OutputHash(absl::Span<const int32_t> ids) {
  Sha256 hash;
  hash.Update(absl::StrJoin(ids, ","));
  return hash.HexDigest().substr(0, kHashDigits);
}

std::string RunCsvHeader() {
  std::vector<std::string> names;
  for (const auto& [name, value] : ColumnsOf({}, {})) names.push_back(name);
  return CsvLine(names);
}

std::string RunCsvLine(const RunContext& context, const RunRecord& record) {
  std::vector<std::string> values;
  for (const auto& [name, value] : ColumnsOf(context, record)) values.push_back(CsvText(value));
  return CsvLine(values);
}

std::string RunJsonLine(const RunContext& context, const RunRecord& record, bool with_ids) {
  ordered_json line;
  for (auto& [name, value] : ColumnsOf(context, record)) line[name] = std::move(value);
  line["token_gaps_us"] = GapsUs(record.token_s);
  line["text"] = record.text;
  if (with_ids) line["token_ids"] = record.ids;
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ridge::bench
