// Parts of a process' start in its log, with seconds.
#pragma once

#include "common/clock.h"
#include "common/logging.h"

namespace ridge {

// Runs a part that returns a Status or a StatusOr, and logs how long it took where it went well.
template <typename Function>
auto TimedPhase(const char* name, Function phase) {
  const int64_t begin_ns = RealClock()->NowNs();
  auto result = phase();
  if (result.ok()) LogInfo("start: {} in {:.3f} s", name, (RealClock()->NowNs() - begin_ns) * 1e-9);
  return result;
}

}  // namespace ridge
