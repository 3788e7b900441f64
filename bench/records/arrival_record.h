// What an open run leaves behind: one record a request, as a line of arrivals.csv. Times in seconds from the
// start of the sweep. Plain data and pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "bench/records/run_record.h"

namespace ridge::bench {

struct ArrivalRecord {
  std::string sweep_id;   // of this pass over the trace
  double rate = 0;        // offered requests a second; 0: the workload's own times
  double last_rate = 0;   // where the rate changes: at the end; otherwise 0
  int32_t in_flight = 0;  // most at once; 0: no limit
  int32_t max_batch = 0;
  uint64_t seed = 0;  // of the draw
  int32_t requests = 0;
  int32_t unserved = 0;  // of the sweep's requests
  int32_t late = 0;  // of the sweep's requests: sent later than scheduled by more than the instrument allows
  std::string prompt_label;
  int32_t prompt_tokens = 0;
  int32_t budget = 0;
  int32_t completion_tokens = 0;
  double arrival_s = 0;  // as scheduled
  double start_s = 0;    // the first step that worked on it; negative: not known
  double first_token_s = 0;
  double end_s = 0;
  std::string end;  // "length", "stop", ... or the name of an error's code

  bool served() const { return end == "length" || end == "stop" || end == "context"; }
};

// Requests a second that really came, by the gaps between them: a draw's differ from its nominal rate. 0: all
// at once.
double ArrivalRate(int32_t requests, double first_s, double last_s);

std::string ArrivalCsvHeader();
// TTFT, queue and latency count from the scheduled arrival; only what was served has a latency.
std::string ArrivalCsvLine(const RunContext& context, const ArrivalRecord& record);

}  // namespace ridge::bench
