// What a closed run leaves behind: one record a sequence, as a line of runs.csv and a line of runs.jsonl.
//
// The columns are those of the series, in its order, after the schema's version; times in seconds from the
// moment at which the run's requests were handed over. Plain data and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace ridge::bench {

inline constexpr int kRecordSchema = 1;

// What all records of one program run have in common.
struct RunContext {
  std::string bench_id;       // of this start of the program
  std::string version;        // of Ridge
  std::string commit;         // of the sources; empty: not known
  std::string engine;         // preset or peer
  std::string engine_params;  // a JSON object: every choice and flag that is not the preset's own
  std::string model;
  std::string dtype;
  std::string device;       // "cuda", "cpu", "simulated:a10"
  std::string device_name;  // of the card or processor
  double load_s = 0;        // the model's way into memory
};

struct RunRecord {
  int run_index = 0;     // warm-ups are negative: -2, -1, then 0, 1, ...
  std::string ts_utc;    // when the run began: 2026-01-31T10:20:30+00:00
  std::string workload;  // "p256-x8": what was handed over
  std::string prompt_label;
  int32_t prompt_tokens = 0;
  int32_t max_new_tokens = 0;
  int32_t batch_size = 1;
  std::string batch_id;  // of the run: equal for the sequences that were handed over together
  int32_t sequence_index = 0;
  float temperature = 0;
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  uint64_t seed = 0;
  bool stop_on_eos = false;
  std::string stopped_reason;
  std::vector<double> token_s;  // when each token was there
  std::vector<int32_t> ids;
  std::string text;
  double total_s = 0;           // until the sequence had ended
  int64_t peak_mem_bytes = 0;   // 0: not known
  std::string peak_mem_source;  // what counted them
  std::string notes;
};

// What follows from the times of the tokens.
struct RunFigures {
  double ttft_s = 0;
  double decode_s = 0;    // total - TTFT
  double decode_tps = 0;  // (tokens - 1) / decode_s; 0 where there is none
  double e2e_tps = 0;     // tokens / total
  double itl_p50_ms = 0;  // nearest rank over the gaps between tokens
  double itl_p95_ms = 0;
};
RunFigures FiguresOf(const RunRecord& record);

// The first 8 hex digits of SHA-256 over the ids, written in decimal and joined by commas.
std::string OutputHash(absl::Span<const int32_t> ids);

// With a line feed at the end.
std::string RunCsvHeader();
std::string RunCsvLine(const RunContext& context, const RunRecord& record);

// All columns by name, the gaps between tokens in microseconds (the first counts from the start of the run),
// the text, and, where `with_ids`, the token ids: equal outputs have equal hashes, so one record with them is
// enough.
std::string RunJsonLine(const RunContext& context, const RunRecord& record, bool with_ids);

}  // namespace ridge::bench
