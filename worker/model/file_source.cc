#include "worker/model/file_source.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/hash.h"
#include "kernels/cpu/weight_ops.h"

namespace ridge::worker {
namespace {

size_t IndexOf(TensorId id) {
  return static_cast<size_t>(id.layer) * kNumTensorRoles + static_cast<size_t>(id.role);
}

int64_t NumLeaves(int64_t rows) {
  return (rows + WeightSource::kLeafRows - 1) / WeightSource::kLeafRows;
}

absl::Span<const char> BytesOfRows(const StoredTensor& tensor, int64_t row_begin, int64_t row_count) {
  return tensor.data.subspan(static_cast<size_t>(row_begin * tensor.row_bytes()),
                             static_cast<size_t>(row_count * tensor.row_bytes()));
}

int64_t RowInFile(int64_t row, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  const int64_t in_head = row % head_dim;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

// A bias is one row; its elements are permuted as the rows of the matrix are.
void UndoElementPermutation(int64_t head_dim, absl::Span<Half> row) {
  const std::vector<Half> stored(row.begin(), row.end());
  for (size_t i = 0; i < row.size(); ++i)
    row[i] = stored[static_cast<size_t>(RowInFile(static_cast<int64_t>(i), head_dim))];
}

std::string Printable(absl::string_view name) {
  return absl::CHexEscape(name.substr(0, 80));
}

// Whether fp16 holds all elements; `out` has no meaning otherwise.
bool ConvertElements(const ElementType& type, const char* data, int64_t count, Half* out) {
  if (&type == &kF16) return kernels::cpu::WeightsFromF16(data, count, out);
  if (&type == &kBf16) return kernels::cpu::WeightsFromBf16(data, count, out);
  // A piece's floats stay in the nearest cache.
  constexpr int64_t kPieceElements = 2048;
  float floats[kPieceElements];
  for (int64_t begin = 0; begin < count; begin += kPieceElements) {
    const int64_t size = std::min(kPieceElements, count - begin);
    type.dequantize(data + begin / type.block_elements * type.block_bytes, size / type.block_elements,
                    floats);
    if (!kernels::cpu::WeightsFromF32(floats, size, out + begin)) return false;
  }
  return true;
}

// The first element that fp16 cannot hold.
int64_t FindMisfit(const ElementType& type, const char* data, int64_t count) {
  std::vector<float> block(static_cast<size_t>(type.block_elements));
  Half ignored;
  for (int64_t begin = 0; begin < count; begin += type.block_elements, data += type.block_bytes) {
    type.dequantize(data, 1, block.data());
    for (size_t i = 0; i < block.size(); ++i) {
      if (!kernels::cpu::WeightsFromF32(&block[i], 1, &ignored)) return begin + static_cast<int64_t>(i);
    }
  }
  RIDGE_CHECK(false);
  return 0;
}

}  // namespace

absl::Status FileSource::Bind(ModelConfig config, const TensorMap& stored, const std::string& path,
                              absl::FunctionRef<bool(absl::string_view)> redundant) {
  config_ = std::move(config);
  bound_.resize(static_cast<size_t>(config_.num_layers) * kNumTensorRoles);
  TensorMap left = stored;
  for (TensorId id : TensorsOf(config_)) {
    const std::string name = layout_.name(id);
    const auto it = left.find(name);
    if (it == left.end())
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", name, ": missing"));
    const StoredTensor& tensor = it->second;
    const TensorShape shape = ShapeOf(config_, id);
    if (tensor.rows != shape.rows || tensor.cols != shape.cols) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: %d x %d, expected %d x %d",
                                                        tensor.file->path(), name, tensor.rows, tensor.cols,
                                                        shape.rows, shape.cols));
    }
    Bound& bound = bound_[IndexOf(id)];
    bound.stored = tensor;
    bound.num_leaves = NumLeaves(shape.rows);
    bound.leaves = std::make_unique<Leaf[]>(static_cast<size_t>(bound.num_leaves));
    left.erase(it);
  }
  for (const auto& [name, tensor] : left) {
    if (!redundant(name)) {
      return absl::UnimplementedError(absl::StrFormat("%s: tensor %s: not part of a %s model as supported",
                                                      tensor.file->path(), Printable(name),
                                                      config_.architecture));
    }
  }
  return absl::OkStatus();
}

const FileSource::Bound& FileSource::BoundTensor(TensorId id) const {
  RIDGE_CHECK(id.layer >= 0 && id.layer < config_.num_layers);
  const Bound& bound = bound_[IndexOf(id)];
  RIDGE_CHECK(bound.num_leaves > 0);
  return bound;
}

bool FileSource::IsPermuted(TensorRole role) const {
  return layout_.permuted_qk && (role == TensorRole::kQuery || role == TensorRole::kKey ||
                                 role == TensorRole::kQueryBias || role == TensorRole::kKeyBias);
}

absl::Status FileSource::ReadRows(TensorId id, int64_t row_begin, int64_t row_count,
                                  absl::Span<Half> out) const {
  const Bound& bound = BoundTensor(id);
  const StoredTensor& tensor = bound.stored;
  RIDGE_CHECK(row_begin >= 0 && row_count >= 0 && row_begin + row_count <= tensor.rows);
  RIDGE_CHECK(static_cast<int64_t>(out.size()) == row_count * tensor.cols);
  // Leaves that lie in these rows as a whole are hashed on the way, while their bytes are in the caches.
  const int64_t first_leaf = NumLeaves(row_begin);
  const int64_t end_leaf =
      row_begin + row_count == tensor.rows ? bound.num_leaves : (row_begin + row_count) / kLeafRows;
  for (int64_t leaf = first_leaf; leaf < end_leaf; ++leaf) HashLeaf(bound, leaf);

  if (!IsPermuted(id.role)) return ReadStoredRows(id, tensor, row_begin, row_count, out);
  if (tensor.rows == 1) {
    absl::Status status = ReadStoredRows(id, tensor, row_begin, row_count, out);
    if (row_count == 1) UndoElementPermutation(config_.head_dim, out);
    return status;
  }
  for (int64_t i = 0; i < row_count; ++i) {
    const absl::Span<Half> row =
        out.subspan(static_cast<size_t>(i * tensor.cols), static_cast<size_t>(tensor.cols));
    absl::Status status = ReadStoredRows(id, tensor, RowInFile(row_begin + i, config_.head_dim), 1, row);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Rows that follow each other in the file.
absl::Status FileSource::ReadStoredRows(TensorId id, const StoredTensor& tensor, int64_t row_begin,
                                        int64_t row_count, absl::Span<Half> out) const {
  const char* data = BytesOfRows(tensor, row_begin, row_count).data();
  const int64_t count = static_cast<int64_t>(out.size());
  if (ConvertElements(*tensor.type, data, count, out.data())) return absl::OkStatus();
  const int64_t bad = FindMisfit(*tensor.type, data, count);
  return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: element %d of row %d does not fit fp16",
                                                    tensor.file->path(), layout_.name(id), bad % tensor.cols,
                                                    row_begin + bad / tensor.cols));
}

void FileSource::Prefetch(TensorId id, int64_t row_begin, int64_t row_count) const {
  const StoredTensor& tensor = BoundTensor(id).stored;
  tensor.file->Prefetch(BytesOfRows(tensor, row_begin, row_count));
}

void FileSource::Populate(TensorId id, int64_t row_begin, int64_t row_count) const {
  const StoredTensor& tensor = BoundTensor(id).stored;
  tensor.file->Populate(BytesOfRows(tensor, row_begin, row_count));
}

void FileSource::Drop(TensorId id, int64_t row_begin, int64_t row_count) const {
  const StoredTensor& tensor = BoundTensor(id).stored;
  tensor.file->Drop(BytesOfRows(tensor, row_begin, row_count));
}

void FileSource::HashLeaf(const Bound& bound, int64_t leaf_index) const {
  Leaf& leaf = bound.leaves[static_cast<size_t>(leaf_index)];
  if (leaf.claimed.exchange(true)) return;
  const int64_t row_begin = leaf_index * kLeafRows;
  const int64_t row_count = std::min(kLeafRows, bound.stored.rows - row_begin);
  leaf.digest = FastDigest(BytesOfRows(bound.stored, row_begin, row_count));
}

std::string FileSource::Fingerprint() const {
  Sha256 hash;
  hash.Update(absl::StrCat(Identity(), " ", CanonicalText(config_)));
  for (TensorId id : TensorsOf(config_)) {
    const Bound& bound = BoundTensor(id);
    hash.Update(absl::StrCat(" ", bound.stored.type->name, ":"));
    for (int64_t leaf = 0; leaf < bound.num_leaves; ++leaf) {
      HashLeaf(bound, leaf);
      hash.Update(bound.leaves[static_cast<size_t>(leaf)].digest);
    }
  }
  return hash.HexDigest();
}

}  // namespace ridge::worker
