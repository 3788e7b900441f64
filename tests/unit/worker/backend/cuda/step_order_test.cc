// What of steps in flight the card may do at the same time, by what the streams wait for.
#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/fake_cuda_runtime.h"
#include "tests/unit/worker/backend/step_driver.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/model/open_model.h"

namespace ridge::worker {
namespace {

using fake_cuda::Enqueued;
using fake_cuda::StreamCall;

constexpr int32_t kNumBlocks = 64;

// Which of the calls are over before one of them begins: those of its stream before it, and all that an event
// says that it waits for.
class Order {
 public:
  explicit Order(const std::vector<StreamCall>& calls) : before_(calls.size()) {
    for (size_t i = 0; i < calls.size(); ++i) {
      before_[i].resize(calls.size());
      for (size_t earlier = i; earlier-- > 0;) {
        if (calls[earlier].stream != calls[i].stream) continue;
        Add(earlier, i);
        break;
      }
      if (calls[i].what != Enqueued::kEventWait) continue;
      for (size_t earlier = i; earlier-- > 0;) {
        if (calls[earlier].what != Enqueued::kEventRecord || calls[earlier].event != calls[i].event) continue;
        Add(earlier, i);
        break;
      }
    }
  }

  bool IsBefore(size_t first, size_t second) const { return before_[second][first]; }

 private:
  void Add(size_t earlier, size_t call) {
    before_[call][earlier] = true;
    for (size_t i = 0; i < earlier; ++i)
      if (before_[earlier][i]) before_[call][i] = true;
  }

  std::vector<std::vector<bool>> before_;  // [call][earlier]
};

struct StepCalls {
  size_t upload;
  size_t first_launch, last_launch;
  size_t results;
};

class StepOrderTest : public testing::TestWithParam<bool> {
 protected:
  // Steps of one decode row, all in flight at once; the streams' calls of each.
  void RunSteps(int count) {
    fake_cuda::Insert({});
    const auto source = OpenModel(RIDGE_TEST_DATA_DIR "/tiny-llama").value();
    const auto backend = CudaBackend::Create(*source, {.graphs = GetParam()}).value();
    ASSERT_TRUE(backend->Reserve(kNumBlocks, {.max_slots = 8, .max_step_rows = 64}).ok());
    StepDriver driver(backend.get(), kNumBlocks);
    driver.Attach(0, {.temperature = 0.0f});
    driver.AddRows(0, {1, 2, 3}, 1);
    driver.Run();
    std::vector<StepTicket> tickets;
    for (int i = 0; i < count; ++i) {
      const size_t begin = fake_cuda::StreamCalls().size();
      driver.AddDecodeRow(0);
      tickets.push_back(driver.Submit());
      const std::vector<StreamCall>& calls = fake_cuda::StreamCalls();
      const auto places = [&](Enqueued what) {
        std::vector<size_t> found;
        for (size_t call = begin; call < calls.size(); ++call)
          if (calls[call].what == what) found.push_back(call);
        return found;
      };
      const std::vector<size_t> uploads = places(Enqueued::kCopyToDevice),
                                launches = places(Enqueued::kLaunch), results = places(Enqueued::kCopyToHost);
      ASSERT_EQ(uploads.size(), 1u);
      ASSERT_EQ(results.size(), 1u);
      ASSERT_GE(launches.size(), 1u);
      steps_.push_back({uploads[0], launches.front(), launches.back(), results[0]});
    }
    for (StepTicket ticket : tickets) driver.Collect(ticket);
    order_ = std::make_unique<Order>(fake_cuda::StreamCalls());
  }

  std::vector<StepCalls> steps_;
  std::unique_ptr<Order> order_;
};

TEST_P(StepOrderTest, AStepsMemoryIsNotWrittenBeforeItsLastUseIsOver) {
  ASSERT_NO_FATAL_FAILURE(RunSteps(7));
  for (size_t i = 0; i < steps_.size(); ++i) {
    EXPECT_TRUE(order_->IsBefore(steps_[i].upload, steps_[i].first_launch)) << i;
    EXPECT_TRUE(order_->IsBefore(steps_[i].last_launch, steps_[i].results)) << i;
    if (i + 1 < steps_.size()) {
      EXPECT_TRUE(order_->IsBefore(steps_[i].last_launch, steps_[i + 1].first_launch)) << i;
    }
    // Those two later have its memory.
    if (i + 2 < steps_.size()) {
      EXPECT_TRUE(order_->IsBefore(steps_[i].last_launch, steps_[i + 2].upload)) << i;
      EXPECT_TRUE(order_->IsBefore(steps_[i].results, steps_[i + 2].first_launch)) << i;
    }
  }
}

TEST_P(StepOrderTest, KernelsOfAStepWaitForNoCopyOfTheStepBefore) {
  ASSERT_NO_FATAL_FAILURE(RunSteps(7));
  for (size_t i = 0; i + 1 < steps_.size(); ++i) {
    EXPECT_FALSE(order_->IsBefore(steps_[i].last_launch, steps_[i + 1].upload)) << i;
    EXPECT_FALSE(order_->IsBefore(steps_[i].results, steps_[i + 1].first_launch)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Launch, StepOrderTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Graphs" : "Stream"; });

}  // namespace
}  // namespace ridge::worker
