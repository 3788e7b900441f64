#include "bench/records/arrival_record.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/records/csv.h"

namespace ridge::bench {
namespace {

using Columns = std::vector<std::pair<const char*, std::string>>;

std::string Seconds(double value) {
  return absl::StrFormat("%.6f", value);
}

Columns ColumnsOf(const RunContext& context, const ArrivalRecord& record) {
  const bool answered = record.completion_tokens > 0;
  const bool started = record.start_s >= 0;
  return {{"schema", absl::StrCat(kRecordSchema)},
          {"bench_id", context.bench_id},
          {"sweep_id", record.sweep_id},
          {"ridge_version", context.version},
          {"commit", context.commit},
          {"engine", context.engine},
          {"engine_params", context.engine_params},
          {"model", context.model},
          {"dtype", context.dtype},
          {"device", context.device},
          {"device_name", context.device_name},
          {"rate", absl::StrCat(record.rate)},
          {"last_rate", absl::StrCat(record.last_rate)},
          {"in_flight", absl::StrCat(record.in_flight)},
          {"max_batch", absl::StrCat(record.max_batch)},
          {"seed", absl::StrCat(record.seed)},
          {"requests", absl::StrCat(record.requests)},
          {"unserved", absl::StrCat(record.unserved)},
          {"late", absl::StrCat(record.late)},
          {"prompt_label", record.prompt_label},
          {"prompt_tokens", absl::StrCat(record.prompt_tokens)},
          {"budget", absl::StrCat(record.budget)},
          {"completion_tokens", absl::StrCat(record.completion_tokens)},
          {"arrival_s", Seconds(record.arrival_s)},
          {"start_s", started ? Seconds(record.start_s) : ""},
          {"queue_s", started ? Seconds(record.start_s - record.arrival_s) : ""},
          {"ttft_s", answered ? Seconds(record.first_token_s - record.arrival_s) : ""},
          {"latency_s", record.served() ? Seconds(record.end_s - record.arrival_s) : ""},
          {"end", record.end}};
}

}  // namespace

double ArrivalRate(int32_t requests, double first_s, double last_s) {
  return last_s > first_s ? (requests - 1) / (last_s - first_s) : 0;
}

std::string ArrivalCsvHeader() {
  std::vector<std::string> names;
  for (const auto& [name, value] : ColumnsOf({}, {})) names.push_back(name);
  return CsvLine(names);
}

std::string ArrivalCsvLine(const RunContext& context, const ArrivalRecord& record) {
  std::vector<std::string> values;
  for (const auto& [name, value] : ColumnsOf(context, record)) values.push_back(value);
  return CsvLine(values);
}

}  // namespace ridge::bench
