#include "common/metrics.h"

#include <utility>

#include "prometheus/text_serializer.h"

namespace ridge {

prometheus::Counter& MetricsRegistry::Counter(const std::string& name, const std::string& help,
                                              const MetricLabels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels);
}

prometheus::Gauge& MetricsRegistry::Gauge(const std::string& name, const std::string& help,
                                          const MetricLabels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels);
}

prometheus::Histogram& MetricsRegistry::Histogram(const std::string& name, const std::string& help,
                                                  const MetricBuckets& buckets, const MetricLabels& labels) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(labels, buckets);
}

void MetricsRegistry::CounterCallback(const std::string& name, const std::string& help,
                                      const MetricLabels& labels, std::function<double()> read) {
  prometheus::Counter& counter = Counter(name, help, labels);
  absl::MutexLock lock(&mutex_);
  readers_.push_back({&counter, std::move(read)});
}

std::string MetricsRegistry::Text() const {
  absl::MutexLock lock(&mutex_);  // scrapes add what is missing one after the other
  for (const Reader& reader : readers_) reader.counter->Increment(reader.read() - reader.counter->Value());
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

MetricBuckets LatencyBuckets() {
  return {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120};
}

MetricBuckets StepBuckets() {
  return {0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02,
          0.03,    0.05,   0.075,  0.1,    0.15,  0.2,   0.3,   0.5,   1,      2,    5,     10};
}

MetricBuckets CountBuckets() {
  return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
}

}  // namespace ridge
