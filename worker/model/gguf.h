// GGUF v2 and v3, little-endian: typed metadata and the tensor directory of a mapped file.
//
// Every count, length and offset is checked against the file before it is used, and counts are bounded, so
// that a hostile file costs an error naming file and key or tensor, never memory. Values are decoded when
// they are asked for. Format: a header (magic, version, tensor count, metadata count), metadata (key, type,
// value)*, the tensor directory (name, dimensions, type, offset)*, then the data, aligned. Ownership: views
// point into the mapping, which GgufFile owns. Threads: const members from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/model/mapped_file.h"
#include "worker/model/stored_tensor.h"

namespace ridge::worker {

// As numbered in the file.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

class GgufFile {
 public:
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  absl::Span<const char> bytes() const { return file_.bytes(); }
  // The bytes before the tensors' data: version, metadata and directory.
  absl::Span<const char> header() const { return bytes().subspan(0, header_bytes_); }

  bool Has(absl::string_view key) const { return values_.contains(key); }

  // NOT_FOUND where the key is missing, INVALID_ARGUMENT where its value is of another kind; both name file
  // and key. An integer or a float is read from any width.
  absl::StatusOr<int64_t> GetInt(absl::string_view key) const;
  absl::StatusOr<double> GetFloat(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<absl::string_view> GetString(absl::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetIntArray(absl::string_view key) const;
  absl::StatusOr<std::vector<double>> GetFloatArray(absl::string_view key) const;
  absl::StatusOr<std::vector<absl::string_view>> GetStringArray(absl::string_view key,
                                                                int64_t max_elements = INT64_MAX) const;

  const TensorMap& tensors() const { return tensors_; }

 private:
  class Reader;

  // A value that was checked but not decoded.
  struct Value {
    GgufType type;  // of the elements, for an array
    bool is_array = false;
    uint64_t count = 1;  // elements
    const char* data;    // the first element
  };

  explicit GgufFile(MappedFile file) : file_(std::move(file)) {}

  absl::Status Parse();
  absl::Status ParseMetadata(Reader& reader, uint64_t count);
  absl::Status ParseTensors(Reader& reader, uint64_t count);
  absl::StatusOr<uint64_t> Alignment() const;
  // Reads one entry of the directory: the tensor without its data, and its offset.
  absl::Status ParseTensor(Reader& reader, std::string* name, StoredTensor* tensor, uint64_t* offset) const;
  absl::Status ResolveTensor(const std::string& name, uint64_t offset, uint64_t alignment,
                             StoredTensor* tensor) const;
  // Tensors follow each other without a gap beyond the alignment, to the file's end.
  absl::Status CheckCover(uint64_t alignment) const;
  absl::StatusOr<Value> Find(absl::string_view key, bool is_array) const;
  absl::Status Error(absl::string_view what) const;
  absl::Status KeyError(absl::string_view key, absl::string_view what) const;

  MappedFile file_;
  absl::flat_hash_map<absl::string_view, Value> values_;
  TensorMap tensors_;
  uint64_t header_bytes_ = 0;
};

}  // namespace ridge::worker
