// Flags of passes over a workload, in process and over the network.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/measure/goodput_search.h"
#include "bench/measure/passes.h"

namespace ridge::bench {

struct PassFlags {
  PassOptions pass;           // but for rate and in_flight
  bool is_trace = false;      // what is asked was recorded elsewhere
  std::vector<double> rates;  // empty: the workload's own times
  std::vector<int32_t> in_flight;
  double least_served_share = 0;
  bool search_goodput = false;  // instead of the passes
  double first_rate = 1;        // of the search
  GoodputLimits limits;
};

// The workload is read where a file is named, else drawn. Errors name the flag.
absl::StatusOr<PassFlags> PassFlagsFromFlags();

// INVALID_ARGUMENT, with the flag that helps, where a request needs more tokens than a context of so many
// has.
absl::Status CheckContext(const PassFlags& flags, int32_t context_tokens);

// The passes that the flags ask for.
absl::Status RunPasses(const Subject& subject, const PassFlags& flags);

// INVALID_ARGUMENT "--flag: ..." where the value is less than the least.
absl::Status CheckAtLeast(absl::string_view flag, double value, double least);

// INVALID_ARGUMENT "--flag: ..." where the value is not from 0 to 1.
absl::Status CheckShare(absl::string_view flag, double value);

// "16", "64" or, with the prefix "p", "p16", "p64".
absl::StatusOr<std::vector<int32_t>> ParseCounts(absl::string_view flag,
                                                 const std::vector<std::string>& texts,
                                                 absl::string_view prefix, int most);

}  // namespace ridge::bench
