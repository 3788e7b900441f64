// How much of the engine each tenant has had, so that who had least comes first (virtual token counters).
//
// Each row of a tenant's sequences adds one to what it was served. A tenant that becomes active starts a
// step's rows before the least served active one, or at its own count where that is more: being idle saves up
// no more than that, and so nobody can be made to wait for a newcomer's past, and a prompt that is little
// longer than a step does not have to let others pass in the middle. Nor does it save up more than kMostLead
// steps' rows to be active and want little, or to be kept from more by slots or memory: who uses meanwhile
// what nobody else can is not made to wait for it later.
//
// Threads: engine thread only. Ownership: tenants live here while they are active.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace ridge::worker {

struct Tenant {
  std::string name;
  const int64_t* least_rows;  // that any tenant counts as served
  int64_t rows = 0;
  int32_t sequences = 0;  // that are not finished; active where there is one
  int32_t running = 0;
  int64_t waiting_tokens = 0;  // known ones of those that wait, without what other choices lend

  int64_t served_rows() const { return std::max(rows, *least_rows); }
};

class TenantShares {
 public:
  // By how many steps' rows the most served tenant is ahead of any other at most.
  static constexpr int64_t kMostLead = 2;

  explicit TenantShares(int32_t step_tokens) : step_tokens_(step_tokens) {}

  // A sequence of this tenant comes in.
  Tenant* Enter(const std::string& name);
  // One of its sequences finished.
  void Leave(Tenant* tenant);
  // Rows of an active tenant are in a step.
  void Serve(Tenant* tenant, int32_t rows);

  int32_t active() const { return active_; }

 private:
  int64_t LeastServed() const;
  void Forget();

  const int32_t step_tokens_;
  absl::flat_hash_map<std::string, std::unique_ptr<Tenant>> tenants_;
  int32_t active_ = 0;
  int64_t least_rows_ = 0;
};

}  // namespace ridge::worker
