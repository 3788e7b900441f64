#include "worker/decision/tenant_shares.h"

#include <algorithm>

#include "common/check.h"

namespace ridge::worker {
namespace {

// Idle tenants whose past is remembered beside the active ones.
constexpr size_t kRememberedTenants = 1024;

}  // namespace

Tenant* TenantShares::Enter(const std::string& name) {
  std::unique_ptr<Tenant>& tenant = tenants_[name];
  if (tenant == nullptr) tenant = std::make_unique<Tenant>(Tenant{.name = name, .least_rows = &least_rows_});
  if (tenant->sequences == 0) {
    tenant->rows = std::max(tenant->rows, LeastServed() - step_tokens_);
    ++active_;
  }
  ++tenant->sequences;
  return tenant.get();
}

void TenantShares::Leave(Tenant* tenant) {
  RIDGE_CHECK(tenant->sequences > 0);
  if (--tenant->sequences > 0) return;
  --active_;
  Forget();
}

void TenantShares::Serve(Tenant* tenant, int32_t rows) {
  tenant->rows = tenant->served_rows() + rows;
  least_rows_ = std::max(least_rows_, tenant->rows - kMostLead * step_tokens_);
}

int64_t TenantShares::LeastServed() const {
  int64_t least = INT64_MAX;
  for (const auto& [name, tenant] : tenants_) {
    if (tenant->sequences > 0) least = std::min(least, tenant->served_rows());
  }
  return active_ == 0 ? 0 : least;
}

void TenantShares::Forget() {
  // Among nobody there is nothing to be fair about.
  if (active_ == 0) {
    tenants_.clear();
    least_rows_ = 0;
  } else if (tenants_.size() > static_cast<size_t>(active_) + kRememberedTenants) {
    absl::erase_if(tenants_, [](const auto& entry) { return entry.second->sequences == 0; });
  }
}

}  // namespace ridge::worker
