#include "worker/model/gguf.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ridge::worker {
namespace {

// Bounds on what a file may ask for. The largest vocabularies of published models have 2^18 pieces and about
// as many merges; tensors and keys come by the thousand.
constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 16;
constexpr uint64_t kMaxNameBytes = 1 << 12;
constexpr uint64_t kMaxArrayElements = 1 << 21;
constexpr uint64_t kMaxAlignment = 1 << 16;
constexpr uint32_t kMaxDimensions = 4;
constexpr uint64_t kDefaultAlignment = 32;

// Bytes of one element; 0 for strings, arrays and unknown types.
uint64_t FixedSize(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

template <typename T>
T Load(const char* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

// False where the type is no integer or the value does not fit.
bool DecodeInt(GgufType type, const char* data, int64_t* value) {
  switch (type) {
    case GgufType::kUint8:
      *value = Load<uint8_t>(data);
      return true;
    case GgufType::kInt8:
      *value = Load<int8_t>(data);
      return true;
    case GgufType::kUint16:
      *value = Load<uint16_t>(data);
      return true;
    case GgufType::kInt16:
      *value = Load<int16_t>(data);
      return true;
    case GgufType::kUint32:
      *value = Load<uint32_t>(data);
      return true;
    case GgufType::kInt32:
      *value = Load<int32_t>(data);
      return true;
    case GgufType::kUint64:
    case GgufType::kInt64:
      *value = Load<int64_t>(data);
      return type == GgufType::kInt64 || *value >= 0;
    default:
      return false;
  }
}

bool DecodeFloat(GgufType type, const char* data, double* value) {
  if (type == GgufType::kFloat32) {
    *value = Load<float>(data);
  } else if (type == GgufType::kFloat64) {
    *value = Load<double>(data);
  } else {
    return false;
  }
  return true;
}

// Names come from the file: keep messages in one printable line.
std::string Printable(absl::string_view name) {
  return absl::CHexEscape(name.substr(0, 80));
}

}  // namespace

// Walks the file; every read is checked against what is left.
class GgufFile::Reader {
 public:
  explicit Reader(absl::Span<const char> bytes)
      : begin_(bytes.data()), at_(begin_), end_(begin_ + bytes.size()) {}

  uint64_t offset() const { return static_cast<uint64_t>(at_ - begin_); }
  uint64_t left() const { return static_cast<uint64_t>(end_ - at_); }
  const char* at() const { return at_; }

  template <typename T>
  bool Read(T* value) {
    if (left() < sizeof(T)) return false;
    *value = Load<T>(at_);
    at_ += sizeof(T);
    return true;
  }

  bool ReadString(absl::string_view* value) {
    uint64_t size;
    if (!Read(&size) || size > left()) return false;
    *value = absl::string_view(at_, size);
    at_ += size;
    return true;
  }

  bool Skip(uint64_t size) {
    if (size > left()) return false;
    at_ += size;
    return true;
  }

  // Skips `count` elements of a type. The element that does not fit ends the walk, so that it takes no longer
  // than the file.
  bool SkipElements(GgufType type, uint64_t count) {
    if (const uint64_t size = FixedSize(type); size != 0) return count <= left() / size && Skip(count * size);
    absl::string_view ignored;
    for (uint64_t i = 0; i < count; ++i) {
      if (!ReadString(&ignored)) return false;
    }
    return true;
  }

 private:
  const char* begin_;
  const char* at_;
  const char* end_;
};

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  std::unique_ptr<GgufFile> gguf(new GgufFile(*std::move(file)));
  if (absl::Status status = gguf->Parse(); !status.ok()) return status;
  return gguf;
}

absl::Status GgufFile::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(path(), ": ", what));
}

absl::Status GgufFile::KeyError(absl::string_view key, absl::string_view what) const {
  return Error(absl::StrCat("metadata ", Printable(key), ": ", what));
}

absl::Status GgufFile::Parse() {
  Reader reader(bytes());
  uint32_t magic, version;
  uint64_t tensor_count, key_count;
  if (!reader.Read(&magic) || std::memcmp(&magic, "GGUF", 4) != 0) return Error("not a GGUF file");
  if (!reader.Read(&version)) return Error("truncated in the header");
  if (version != 2 && version != 3) {
    if ((version & 0xFFFF) == 0)
      return Error("a big-endian GGUF file: only little-endian ones are supported");
    return Error(absl::StrFormat("GGUF version %u is not supported, only 2 and 3", version));
  }
  if (!reader.Read(&tensor_count) || !reader.Read(&key_count)) return Error("truncated in the header");
  if (key_count > kMaxKeys)
    return Error(absl::StrFormat("%u metadata keys: more than %u", key_count, kMaxKeys));
  if (tensor_count > kMaxTensors)
    return Error(absl::StrFormat("%u tensors: more than %u", tensor_count, kMaxTensors));
  if (absl::Status status = ParseMetadata(reader, key_count); !status.ok()) return status;
  return ParseTensors(reader, tensor_count);
}

absl::Status GgufFile::ParseMetadata(Reader& reader, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    absl::string_view key;
    if (!reader.ReadString(&key))
      return Error(absl::StrFormat("truncated in metadata key %u of %u", i + 1, count));
    if (key.empty() || key.size() > kMaxNameBytes) return KeyError(key, "a key of no or too many bytes");
    Value value;
    if (!reader.Read(&value.type)) return KeyError(key, "truncated");
    if (value.type == GgufType::kArray) {
      value.is_array = true;
      if (!reader.Read(&value.type) || !reader.Read(&value.count)) return KeyError(key, "truncated");
      if (value.type == GgufType::kArray) return KeyError(key, "arrays of arrays are not supported");
      if (value.count > kMaxArrayElements) {
        return KeyError(key, absl::StrFormat("%u elements: more than %u", value.count, kMaxArrayElements));
      }
    }
    if (FixedSize(value.type) == 0 && value.type != GgufType::kString) {
      return KeyError(key, absl::StrFormat("unknown value type %u", static_cast<uint32_t>(value.type)));
    }
    value.data = reader.at();
    if (!reader.SkipElements(value.type, value.count))
      return KeyError(key, "truncated, or longer than the file");
    if (!values_.emplace(key, value).second) return KeyError(key, "given twice");
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> GgufFile::Alignment() const {
  if (!Has("general.alignment")) return kDefaultAlignment;
  absl::StatusOr<int64_t> given = GetInt("general.alignment");
  if (!given.ok()) return given.status();
  const uint64_t alignment = static_cast<uint64_t>(*given);
  if (alignment == 0 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
    return KeyError("general.alignment",
                    absl::StrCat(*given, " is not a power of two up to ", kMaxAlignment));
  }
  return alignment;
}

absl::Status GgufFile::ParseTensors(Reader& reader, uint64_t count) {
  absl::StatusOr<uint64_t> alignment = Alignment();
  if (!alignment.ok()) return alignment.status();
  absl::flat_hash_map<std::string, uint64_t> offsets;
  for (uint64_t i = 0; i < count; ++i) {
    std::string name;
    StoredTensor tensor{};
    uint64_t offset;
    absl::Status status = ParseTensor(reader, &name, &tensor, &offset);
    if (!status.ok()) return status;
    if (!tensors_.emplace(name, tensor).second)
      return Error(absl::StrCat("tensor ", Printable(name), ": given twice"));
    offsets.emplace(std::move(name), offset);
  }
  // Where the data begin is known only now.
  header_bytes_ = reader.offset();
  for (auto& [name, tensor] : tensors_) {
    absl::Status status = ResolveTensor(name, offsets.at(name), *alignment, &tensor);
    if (!status.ok()) return status;
  }
  return CheckCover(*alignment);
}

absl::Status GgufFile::CheckCover(uint64_t alignment) const {
  const auto aligned = [alignment](uint64_t size) { return (size + alignment - 1) / alignment * alignment; };
  std::vector<std::pair<uint64_t, absl::string_view>> begins;  // of each tensor in the file
  for (const auto& [name, tensor] : tensors_) begins.emplace_back(tensor.data.data() - bytes().data(), name);
  std::sort(begins.begin(), begins.end());
  uint64_t covered = aligned(header_bytes_);
  for (const auto& [begin, name] : begins) {
    if (begin != covered) {
      return Error(absl::StrFormat("tensor %s: begins at byte %u, where the tensor before it ends at %u",
                                   Printable(name), begin, covered));
    }
    covered = aligned(begin + tensors_.at(name).data.size());
  }
  if (bytes().size() > covered) {
    return Error(absl::StrFormat("%u bytes of data belong to no tensor", bytes().size() - covered));
  }
  return absl::OkStatus();
}

absl::Status GgufFile::ParseTensor(Reader& reader, std::string* name, StoredTensor* tensor,
                                   uint64_t* offset) const {
  absl::string_view stored_name;
  uint32_t dimensions, type;
  if (!reader.ReadString(&stored_name)) return Error("truncated in the tensors' directory");
  const auto error = [&](absl::string_view what) {
    return Error(absl::StrCat("tensor ", Printable(stored_name), ": ", what));
  };
  if (stored_name.empty() || stored_name.size() > kMaxNameBytes)
    return error("a name of no or too many bytes");
  *name = std::string(stored_name);
  if (!reader.Read(&dimensions)) return error("truncated");
  if (dimensions < 1 || dimensions > kMaxDimensions)
    return error(absl::StrFormat("%u dimensions", dimensions));
  uint64_t elements = 1;
  for (uint32_t d = 0; d < dimensions; ++d) {
    uint64_t size;
    if (!reader.Read(&size)) return error("truncated");
    // No element takes less than a quarter of a byte: more than this cannot be in the file.
    if (size == 0 || size > 4 * bytes().size() / elements) {
      return error(absl::StrFormat("dimension %u of %u is more than the file holds, or 0", d, size));
    }
    elements *= size;
    if (d == 0) tensor->cols = static_cast<int64_t>(size);
  }
  tensor->rows = static_cast<int64_t>(elements) / tensor->cols;
  if (!reader.Read(&type) || !reader.Read(offset)) return error("truncated");
  tensor->file = &file_;
  tensor->type = FindGgmlType(type);
  if (tensor->type == nullptr) {
    return absl::UnimplementedError(absl::StrFormat("%s: tensor %s: data type %u is not supported, only %s",
                                                    path(), Printable(stored_name), type, GgmlTypeNames()));
  }
  if (tensor->cols % tensor->type->block_elements != 0) {
    return error(
        absl::StrFormat("rows of %d elements are not whole %s blocks", tensor->cols, tensor->type->name));
  }
  return absl::OkStatus();
}

absl::Status GgufFile::ResolveTensor(const std::string& name, uint64_t offset, uint64_t alignment,
                                     StoredTensor* tensor) const {
  if (offset % alignment != 0) {
    return Error(
        absl::StrFormat("tensor %s: offset %u is not aligned to %u", Printable(name), offset, alignment));
  }
  // rows * cols was bounded by four times the file's size, so that the product cannot overflow.
  const uint64_t size = static_cast<uint64_t>(tensor->rows) * static_cast<uint64_t>(tensor->row_bytes());
  const uint64_t file_size = bytes().size();
  const uint64_t data_begin = (header_bytes_ + alignment - 1) / alignment * alignment;
  if (data_begin > file_size || offset > file_size - data_begin || size > file_size - data_begin - offset) {
    return absl::DataLossError(
        absl::StrFormat("%s: tensor %s: its %u bytes at offset %u end after the file's %u: truncated?",
                        path(), Printable(name), size, offset, file_size));
  }
  tensor->data = bytes().subspan(data_begin + offset, size);
  return absl::OkStatus();
}

absl::StatusOr<GgufFile::Value> GgufFile::Find(absl::string_view key, bool is_array) const {
  const auto it = values_.find(key);
  if (it == values_.end())
    return absl::NotFoundError(absl::StrCat(path(), ": metadata ", Printable(key), ": missing"));
  if (it->second.is_array != is_array) return KeyError(key, is_array ? "not an array" : "an array");
  return it->second;
}

absl::StatusOr<int64_t> GgufFile::GetInt(absl::string_view key) const {
  absl::StatusOr<Value> value = Find(key, false);
  if (!value.ok()) return value.status();
  int64_t result;
  if (!DecodeInt(value->type, value->data, &result)) return KeyError(key, "not an integer of 63 bits");
  return result;
}

absl::StatusOr<double> GgufFile::GetFloat(absl::string_view key) const {
  absl::StatusOr<Value> value = Find(key, false);
  if (!value.ok()) return value.status();
  double result;
  if (!DecodeFloat(value->type, value->data, &result)) return KeyError(key, "not a float");
  return result;
}

absl::StatusOr<bool> GgufFile::GetBool(absl::string_view key) const {
  absl::StatusOr<Value> value = Find(key, false);
  if (!value.ok()) return value.status();
  if (value->type != GgufType::kBool) return KeyError(key, "not a bool");
  return Load<uint8_t>(value->data) != 0;
}

absl::StatusOr<absl::string_view> GgufFile::GetString(absl::string_view key) const {
  absl::StatusOr<Value> value = Find(key, false);
  if (!value.ok()) return value.status();
  if (value->type != GgufType::kString) return KeyError(key, "not a string");
  return absl::string_view(value->data + sizeof(uint64_t), Load<uint64_t>(value->data));
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetIntArray(absl::string_view key) const {
  absl::StatusOr<Value> value = Find(key, true);
  if (!value.ok()) return value.status();
  std::vector<int64_t> result(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    if (!DecodeInt(value->type, value->data + i * FixedSize(value->type), &result[i])) {
      return KeyError(key, "not an array of integers of 63 bits");
    }
  }
  return result;
}

absl::StatusOr<std::vector<double>> GgufFile::GetFloatArray(absl::string_view key) const {
  absl::StatusOr<Value> value = Find(key, true);
  if (!value.ok()) return value.status();
  std::vector<double> result(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    if (!DecodeFloat(value->type, value->data + i * FixedSize(value->type), &result[i])) {
      return KeyError(key, "not an array of floats");
    }
  }
  return result;
}

absl::StatusOr<std::vector<absl::string_view>> GgufFile::GetStringArray(absl::string_view key,
                                                                        int64_t max_elements) const {
  absl::StatusOr<Value> value = Find(key, true);
  if (!value.ok()) return value.status();
  if (value->type != GgufType::kString) return KeyError(key, "not an array of strings");
  if (value->count > static_cast<uint64_t>(max_elements)) {
    return KeyError(key, absl::StrFormat("%u elements: more than %d", value->count, max_elements));
  }
  std::vector<absl::string_view> result(value->count);
  const char* at = value->data;  // the lengths were checked when the file was opened
  for (absl::string_view& text : result) {
    text = absl::string_view(at + sizeof(uint64_t), Load<uint64_t>(at));
    at += sizeof(uint64_t) + text.size();
  }
  return result;
}

}  // namespace ridge::worker
