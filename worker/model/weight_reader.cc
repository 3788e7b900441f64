#include "worker/model/weight_reader.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "common/clock.h"
#include "common/logging.h"

namespace ridge::worker {
namespace {

// fp16 bytes that a thread takes at a time: long enough for the disk, short enough to share out evenly.
constexpr int64_t kJobBytes = 1 << 20;
// Jobs that are asked for ahead.
constexpr size_t kJobsAhead = 32;

struct Job {
  TensorId id;
  int64_t row_begin;
  int64_t row_count;
  int64_t cols;

  int64_t bytes() const { return row_count * cols * static_cast<int64_t>(sizeof(Half)); }
};

std::vector<Job> JobsOf(const ModelConfig& config) {
  constexpr int64_t kLeaf = WeightSource::kLeafRows;
  std::vector<Job> jobs;
  for (TensorId id : TensorsOf(config)) {
    const TensorShape shape = ShapeOf(config, id);
    const int64_t leaf_bytes = kLeaf * shape.cols * static_cast<int64_t>(sizeof(Half));
    const int64_t rows = std::max<int64_t>(kJobBytes / leaf_bytes, 1) * kLeaf;
    for (int64_t row = 0; row < shape.rows; row += rows) {
      jobs.push_back({id, row, std::min(rows, shape.rows - row), shape.cols});
    }
  }
  return jobs;
}

// A line every two seconds, from whichever thread comes by.
class Progress {
 public:
  explicit Progress(const std::vector<Job>& jobs) {
    for (const Job& job : jobs) total_bytes_ += job.bytes();
  }

  void Add(int64_t bytes) {
    const int64_t done = done_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    const int64_t now = RealClock()->NowNs();
    int64_t due = next_line_ns_.load(std::memory_order_relaxed);
    if (now < due || !next_line_ns_.compare_exchange_strong(due, now + kIntervalNs)) return;
    const double seconds = static_cast<double>(now - begin_ns_) * 1e-9;
    LogInfo("weights: {:.2f} of {:.2f} GB as fp16, {:.2f} GB/s", done * 1e-9, total_bytes_ * 1e-9,
            done * 1e-9 / seconds);
  }

 private:
  static constexpr int64_t kIntervalNs = 2'000'000'000;

  const int64_t begin_ns_ = RealClock()->NowNs();
  std::atomic<int64_t> next_line_ns_{begin_ns_ + kIntervalNs};
  std::atomic<int64_t> done_bytes_{0};
  int64_t total_bytes_ = 0;
};

absl::Status RunJob(const WeightSource& source, const Job& job, const RowSink& sink,
                    std::vector<Half>& buffer) {
  source.Populate(job.id, job.row_begin, job.row_count);
  absl::Status status;
  for (int64_t row = 0; row < job.row_count && status.ok(); row += WeightSource::kLeafRows) {
    const int64_t count = std::min(WeightSource::kLeafRows, job.row_count - row);
    buffer.resize(static_cast<size_t>(count * job.cols));
    status = source.ReadRows(job.id, job.row_begin + row, count, absl::MakeSpan(buffer));
    if (status.ok()) sink(job.id, job.row_begin + row, buffer);
  }
  source.Drop(job.id, job.row_begin, job.row_count);
  return status;
}

}  // namespace

absl::Status ReadWeights(const WeightSource& source, kernels::cpu::ThreadPool* pool, const RowSink& sink) {
  const std::vector<Job> jobs = JobsOf(source.config());
  const auto prefetch = [&](size_t i) {
    if (i < jobs.size()) source.Prefetch(jobs[i].id, jobs[i].row_begin, jobs[i].row_count);
  };
  for (size_t i = 0; i < kJobsAhead; ++i) prefetch(i);

  Progress progress(jobs);
  std::atomic<size_t> next{0};
  std::mutex mutex;
  absl::Status first_error;  // guarded by mutex
  pool->Run([&](int) {
    std::vector<Half> buffer;
    for (size_t i; (i = next.fetch_add(1)) < jobs.size();) {
      prefetch(i + kJobsAhead);
      const absl::Status status = RunJob(source, jobs[i], sink, buffer);
      progress.Add(jobs[i].bytes());
      if (status.ok()) continue;
      std::lock_guard lock(mutex);
      first_error.Update(status);
      next = jobs.size();
    }
  });
  return first_error;
}

}  // namespace ridge::worker
