#include "common/clock.h"

#include <chrono>

namespace ridge {
namespace {

class SteadyClock : public Clock {
 public:
  int64_t NowNs() const override {
    const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since_start).count();
  }
};

}  // namespace

Clock* RealClock() {
  static SteadyClock clock;
  return &clock;
}

}  // namespace ridge
