// Weights in mapped files, whatever their format: the tensors of a configuration bound to stored ones,
// converted to fp16 as they are read.
//
// Threads: const members from any thread. Ownership: the files behind the tensors belong to the derived
// class.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/model/stored_tensor.h"
#include "worker/model/weight_source.h"

namespace ridge::worker {

// How a file format spells a model.
struct FileLayout {
  std::string (*name)(TensorId id);
  // Rows of q and k are stored with rotary pairs as neighbours: row 2 j + s of a head holds what belongs at s
  // * head_dim / 2 + j.
  bool permuted_qk = false;
};

class FileSource : public WeightSource {
 public:
  const ModelConfig& config() const override { return config_; }
  absl::Status ReadRows(TensorId id, int64_t row_begin, int64_t row_count,
                        absl::Span<Half> out) const override;
  void Prefetch(TensorId id, int64_t row_begin, int64_t row_count) const override;
  void Populate(TensorId id, int64_t row_begin, int64_t row_count) const override;
  void Drop(TensorId id, int64_t row_begin, int64_t row_count) const override;
  std::string Fingerprint() const override;

 protected:
  explicit FileSource(FileLayout layout) : layout_(layout) {}

  // Binds the configuration's tensors. INVALID_ARGUMENT naming file and tensor where one is missing (then the
  // file is `path`) or has another shape. Where a tensor is stored that the model does not know, to leave it
  // out would silently change the model: UNIMPLEMENTED, unless `redundant` says that the configuration has it
  // already.
  absl::Status Bind(ModelConfig config, const TensorMap& stored, const std::string& path,
                    absl::FunctionRef<bool(absl::string_view)> redundant);

  // What of the files decides the outputs besides configuration and weights: for the fingerprint.
  virtual std::string Identity() const = 0;

 private:
  // A run of kLeafRows rows of a tensor (the last one shorter), the unit of the fingerprint.
  struct Leaf {
    std::atomic<bool> claimed{false};
    std::string digest;  // of the stored bytes; written by who claimed it
  };

  struct Bound {
    StoredTensor stored;
    std::unique_ptr<Leaf[]> leaves;
    int64_t num_leaves = 0;
  };

  const Bound& BoundTensor(TensorId id) const;
  bool IsPermuted(TensorRole role) const;
  absl::Status ReadStoredRows(TensorId id, const StoredTensor& tensor, int64_t row_begin, int64_t row_count,
                              absl::Span<Half> out) const;
  void HashLeaf(const Bound& bound, int64_t leaf) const;

  const FileLayout layout_;
  ModelConfig config_;
  std::vector<Bound> bound_;  // by IndexOf(id)
};

}  // namespace ridge::worker
