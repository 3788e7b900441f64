// Prometheus metrics of one process.
//
// Thread-safe. Ownership: the registry owns its instruments; references stay valid as long as it lives.
// Asking again for the same name and labels gives the same instrument.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace ridge {

using MetricLabels = std::map<std::string, std::string>;
using MetricBuckets = prometheus::Histogram::BucketBoundaries;

class MetricsRegistry {
 public:
  prometheus::Counter& Counter(const std::string& name, const std::string& help,
                               const MetricLabels& labels = {});
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help,
                                   const MetricBuckets& buckets, const MetricLabels& labels = {});

  // A counter whose total is kept elsewhere and read when it is scraped; it never goes down. The callback
  // must stay valid, and must not use the registry.
  void CounterCallback(const std::string& name, const std::string& help, const MetricLabels& labels,
                       std::function<double()> read);

  // All metrics in Prometheus' text format.
  std::string Text() const;

 private:
  struct Reader {
    prometheus::Counter* counter;
    std::function<double()> read;
  };

  prometheus::Registry registry_;
  mutable absl::Mutex mutex_;
  std::vector<Reader> readers_ ABSL_GUARDED_BY(mutex_);
};

// Bucket bounds in seconds for whole requests, 1 ms to 120 s.
MetricBuckets LatencyBuckets();
// Bucket bounds in seconds for steps and gaps between tokens, 50 us to 10 s.
MetricBuckets StepBuckets();
// Powers of two, 1 to 8192.
MetricBuckets CountBuckets();

}  // namespace ridge
