// The workers behind this router: their channels, what they last reported, and what this router has open
// there.
//
// Each worker is watched through one Worker.WatchLoad stream. The worker is up while reports arrive; a stream
// that ends or falls silent is opened anew, with backoff. A worker from which nothing comes any more, neither
// reports nor messages of streams, is lost, and what is open there with it. Connections are kept by gRPC,
// with its own backoff.
//
// Threads: everything here is thread-safe. One thread of Upstreams opens and ends watches; gRPC's threads
// bring the reports. Ownership: Upstreams owns its Upstream objects; a Lease must not outlive them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "grpcpp/generic/generic_stub.h"
#include "ridge/v1/worker.grpc.pb.h"
#include "router/policy.h"
#include "router/router_metrics.h"

namespace ridge::router {

struct UpstreamOptions {
  absl::Duration connect_timeout = absl::Seconds(5);
  absl::Duration report_timeout = absl::Seconds(5);  // a worker that is silent for longer is down
  int64_t max_message_bytes = int64_t{16} << 20;
};

struct UpstreamState {
  bool up = false;        // reports arrive
  v1::LoadReport report;  // the last one; empty while down
  int64_t in_flight = 0;  // calls of this router that are open there
  std::string why_down;   // the last failure to get reports; empty before the first one, and while up
};

// What a worker must have that is tried after others turned a request away.
struct Need {
  bool queue_room = false;
  int64_t more_kv_tokens_than = 0;
};

// A call that is open at a worker.
class UpstreamCall {
 public:
  virtual ~UpstreamCall() = default;
  // The worker fell silent: the call is to end, soon. Must not block.
  virtual void Cancel() = 0;
};

class Upstream {
 public:
  // `on_change` is called whenever the state may have changed, without a lock of this object; it must not
  // block.
  Upstream(std::string address, const UpstreamOptions& options, const Clock* clock, RouterMetrics* metrics,
           std::function<void()> on_change);
  ~Upstream();

  const std::string& address() const { return address_; }
  v1::Worker::Stub* worker() const { return worker_.get(); }
  // For methods that are relayed as raw bytes.
  grpc::GenericStub* raw() const { return raw_.get(); }

  UpstreamState State() const;

  void CountGenerate() { generate_metric_.Increment(); }

  // Between the two, `call` is cancelled when the worker falls silent.
  void Opened(UpstreamCall* call);
  void Closed(UpstreamCall* call);

  // Something other than a report came from the worker.
  void SawLife() { last_life_ns_ = clock_->NowNs(); }

  // Why a call that ended with `status` was lost here, in words.
  std::string LossReason(const grpc::Status& status) const;

  // Opens the watch when it is due and ends one that fell silent. Not together with or after Stop.
  void Tick();

  // Ends the watch and waits for its end.
  void Stop();

 private:
  friend class Lease;
  class LoadWatch;

  bool Silent() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string SilenceReason() const;
  void Reported(const v1::LoadReport& report);
  void WatchEnded(const grpc::Status& status);

  const std::string address_;
  const UpstreamOptions options_;
  const Clock* const clock_;
  const std::function<void()> on_change_;
  prometheus::Gauge& up_metric_;
  prometheus::Counter& generate_metric_;
  std::unique_ptr<v1::Worker::Stub> worker_;
  std::unique_ptr<grpc::GenericStub> raw_;
  std::atomic<int64_t> in_flight_{0};
  std::atomic<int64_t> last_life_ns_{0};

  mutable absl::Mutex mutex_;
  std::unique_ptr<LoadWatch> watch_ ABSL_GUARDED_BY(mutex_);
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;  // until the last call of an ended watch has returned
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool up_ ABSL_GUARDED_BY(mutex_) = false;
  v1::LoadReport report_ ABSL_GUARDED_BY(mutex_);
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;  // fell silent; until the next report
  std::string why_down_ ABSL_GUARDED_BY(mutex_);
  std::set<UpstreamCall*> calls_ ABSL_GUARDED_BY(mutex_);
  int64_t next_watch_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t backoff_ns_ ABSL_GUARDED_BY(mutex_);
};

// One call's place at a worker: counts in its in_flight until it is destroyed.
class Lease {
 public:
  explicit Lease(Upstream* upstream);
  Lease(Lease&& other) noexcept : upstream_(std::exchange(other.upstream_, nullptr)) {}
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();

  Upstream* upstream() const { return upstream_; }

 private:
  Upstream* upstream_;
};

class Upstreams {
 public:
  // Starts to watch. `on_ready` hears whenever it changed whether some worker accepts requests (at first none
  // does), one call at a time, until this object is destroyed; it must not block.
  Upstreams(const std::vector<std::string>& addresses, const UpstreamOptions& options, const Clock* clock,
            RouterMetrics* metrics, std::function<void(bool)> on_ready);
  ~Upstreams();

  // The policy's choice among the workers that are not in `tried` and have what is needed, as far as their
  // reports say; its errors pass through.
  absl::StatusOr<Lease> Acquire(absl::string_view model, const std::vector<const Upstream*>& tried,
                                const Need& need);

  // One line a worker, for people.
  std::string Describe() const;

 private:
  void Watch();
  // After any change of a worker's state.
  void Notify();
  std::vector<WorkerLoad> Loads() const;

  const std::function<void(bool)> on_ready_;
  std::vector<std::unique_ptr<Upstream>> upstreams_;
  absl::Mutex pick_mutex_;  // makes choosing and counting one act
  LeastLoaded policy_ ABSL_GUARDED_BY(pick_mutex_);
  absl::Mutex notify_mutex_;
  bool last_ready_ ABSL_GUARDED_BY(notify_mutex_) = false;
  std::vector<bool> last_differs_ ABSL_GUARDED_BY(notify_mutex_);
  absl::Notification stopped_;
  std::thread thread_;
};

}  // namespace ridge::router
