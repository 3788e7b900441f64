// Which worker gets a request.
//
// Pure: knows neither gRPC nor time. Thread-compatible: the caller serialises Pick.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ridge::router {

// What the policy knows of one worker.
struct WorkerLoad {
  bool ready = false;     // its reports arrive and it accepts requests
  bool excluded = false;  // this request has tried it already, or would be turned away
  std::string model;
  std::string numerics_id;
  int32_t context_length = 0;  // most tokens of prompt and completion together
  int32_t queue_room = 0;      // requests that it would still take: start or queue
  int64_t kv_tokens = 0;       // that its KV memory holds
  int64_t in_flight = 0;       // requests that this router has open there
  int64_t reported = 0;        // running and queued requests of all routers, as the worker last said
};

// Which ready workers differ, in numerics or context, from what most ready workers of the same model's name
// have (from the first of them where the numbers are even). What a request gets must not depend on where it
// runs: the differing ones serve nothing.
std::vector<bool> Differing(absl::Span<const WorkerLoad> workers);

// The least loaded worker that is ready, serves the model and does not differ.
class LeastLoaded {
 public:
  // Index into `workers`. An empty model means any, whatever it is. UNAVAILABLE where no worker is ready or
  // all that serve the model are excluded, NOT_FOUND where none of the ready ones serves the model.
  //
  // The load is max(in_flight, reported): the report lags behind what this router has just sent, and this
  // router does not see what others send. Equal loads take turns.
  absl::StatusOr<size_t> Pick(absl::Span<const WorkerLoad> workers, absl::string_view model);

 private:
  size_t first_ = 0;  // where the next search starts
};

}  // namespace ridge::router
