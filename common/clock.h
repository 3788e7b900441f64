// Time as the rest of the code sees it, so that tests can hold it still.
#pragma once

#include <atomic>
#include <cstdint>

namespace ridge {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds on a clock that never goes back; only differences have a meaning.
  virtual int64_t NowNs() const = 0;
};

// The steady clock of the machine; lives for ever.
Clock* RealClock();

// Stands still until it is moved.
class FakeClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_.load(); }
  void AdvanceNs(int64_t ns) { now_ns_ += ns; }

 private:
  std::atomic<int64_t> now_ns_{1};
};

}  // namespace ridge
