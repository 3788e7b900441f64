#include "worker/model/weight_reader.h"

#include <map>
#include <mutex>

#include "gtest/gtest.h"
#include "worker/model/synthetic.h"

namespace ridge::worker {
namespace {

ModelConfig SmallConfig() {
  ModelConfig config;
  config.num_layers = 3;
  config.hidden_size = 64;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.mlp_size = 160;
  config.vocab_size = 10000;
  config.context_length = 64;
  config.qk_norm = true;
  return config;
}

// A synthetic source that keeps book of how it is read.
class RecordingSource : public WeightSource {
 public:
  const ModelConfig& config() const override { return source_.config(); }

  absl::Status ReadRows(TensorId id, int64_t row_begin, int64_t row_count,
                        absl::Span<Half> out) const override {
    if (id.role == bad_role) return absl::DataLossError("bad");
    EXPECT_EQ(row_begin % kLeafRows, 0);
    EXPECT_LE(row_count, kLeafRows);
    Count(read, id, row_count);
    return source_.ReadRows(id, row_begin, row_count, out);
  }
  void Prefetch(TensorId id, int64_t, int64_t row_count) const override { Count(prefetched, id, row_count); }
  void Populate(TensorId id, int64_t, int64_t row_count) const override { Count(populated, id, row_count); }
  void Drop(TensorId id, int64_t, int64_t row_count) const override { Count(dropped, id, row_count); }
  std::string Fingerprint() const override { return ""; }

  using Rows = std::map<std::pair<TensorRole, int32_t>, int64_t>;

  TensorRole bad_role = static_cast<TensorRole>(-1);
  mutable Rows read, prefetched, populated, dropped;

 private:
  void Count(Rows& rows, TensorId id, int64_t row_count) const {
    std::lock_guard lock(mutex_);
    rows[{id.role, id.layer}] += row_count;
  }

  mutable std::mutex mutex_;
  const SyntheticSource source_{SmallConfig()};
};

TEST(WeightReader, EveryRowComesOnceAndIsDropped) {
  const RecordingSource source;
  kernels::cpu::ThreadPool pool(3);
  std::mutex mutex;
  RecordingSource::Rows got;
  std::map<int64_t, Half> first_of_embedding;  // by row
  const absl::Status status =
      ReadWeights(source, &pool, [&](TensorId id, int64_t row_begin, absl::Span<const Half> rows) {
        const int64_t cols = ShapeOf(source.config(), id).cols;
        std::lock_guard lock(mutex);
        got[{id.role, id.layer}] += static_cast<int64_t>(rows.size()) / cols;
        if (id.role != TensorRole::kTokenEmbedding) return;
        for (size_t row = 0; row * cols < rows.size(); ++row)
          first_of_embedding[row_begin + static_cast<int64_t>(row)] = rows[row * static_cast<size_t>(cols)];
      });
  ASSERT_TRUE(status.ok()) << status;
  RecordingSource::Rows expected;
  for (TensorId id : TensorsOf(source.config()))
    expected[{id.role, id.layer}] = ShapeOf(source.config(), id).rows;
  EXPECT_EQ(got, expected);
  EXPECT_EQ(source.read, expected);
  EXPECT_EQ(source.prefetched, expected);
  EXPECT_EQ(source.populated, expected);
  EXPECT_EQ(source.dropped, expected);
  const SyntheticSource plain(SmallConfig());
  for (int64_t row : {0, 127, 128, 8192, 9999}) {
    std::vector<Half> values(64);
    ASSERT_TRUE(plain.ReadRows({TensorRole::kTokenEmbedding}, row, 1, absl::MakeSpan(values)).ok());
    EXPECT_EQ(first_of_embedding.at(row), values[0]) << row;
  }
}

TEST(WeightReader, TheFirstErrorEndsIt) {
  RecordingSource source;
  source.bad_role = TensorRole::kAttentionNorm;
  kernels::cpu::ThreadPool pool(1);
  const absl::Status status = ReadWeights(source, &pool, [](TensorId, int64_t, absl::Span<const Half>) {});
  EXPECT_EQ(status, absl::DataLossError("bad"));
  EXPECT_EQ(source.read.count({TensorRole::kFinalNorm, 0}), 0u);
}

}  // namespace
}  // namespace ridge::worker
