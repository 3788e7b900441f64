#include "worker/model/safetensors_header.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace ridge::worker {
namespace {

constexpr size_t kMaxTensors = 1 << 16;
constexpr size_t kMaxNameBytes = 1 << 12;
constexpr int kMaxDimensions = 8;
constexpr uint64_t kMaxElements = uint64_t{1} << 48;  // products of dimensions stay far from overflow

// Receives the parser's events. Depth 1 is the header, 2 a tensor's object, 3 an array in it. Returning false
// stops the parser; error() then says why.
class HeaderEvents {
 public:
  std::vector<SafetensorsEntry>& entries() { return entries_; }
  const std::string& error() const { return error_; }
  const std::string& name() const { return entry_.name; }

  bool null() { return Unexpected(); }
  bool boolean(bool) { return Unexpected(); }
  bool number_integer(int64_t) { return Unexpected(); }  // negative: positive ones are unsigned
  bool number_float(double, const std::string&) { return Unexpected(); }
  bool binary(std::vector<uint8_t>&) { return Unexpected(); }

  bool number_unsigned(uint64_t value) {
    if (in_metadata_) return MetadataValue();
    if (depth_ != 3) return Unexpected();
    if (field_ == "shape") {
      if (num_dimensions_ == kMaxDimensions) return Fail("shape: too many dimensions");
      if (value == 0 || value > kMaxElements) return Fail("shape: a dimension of 0 or too large");
      shape_[num_dimensions_++] = value;
      return true;
    }
    if (num_offsets_ == 2) return Fail("data_offsets: more than two numbers");
    offsets_[num_offsets_++] = value;
    return true;
  }

  bool string(std::string& value) {
    if (in_metadata_) return MetadataValue();
    if (depth_ != 2 || field_ != "dtype") return Unexpected();
    for (const ElementType* type : {&kF32, &kF16, &kBf16}) {
      if (value == type->name) entry_.type = type;
    }
    if (entry_.type != nullptr) return true;
    return Fail(absl::StrCat("dtype ", absl::CHexEscape(value.substr(0, 20)),
                             " is not supported, only F32, F16 and BF16"));
  }

  bool start_object(size_t) {
    if (depth_ >= 2) return Unexpected();
    ++depth_;
    return true;
  }

  bool key(std::string& value) {
    if (value.size() > kMaxNameBytes) return Fail("a name of too many bytes");
    if (in_metadata_) return true;
    if (depth_ == 1) {
      in_metadata_ = value == "__metadata__";
      entry_ = SafetensorsEntry{};
      entry_.name = value;
      num_dimensions_ = num_offsets_ = 0;
      return true;
    }
    if (value != "dtype" && value != "shape" && value != "data_offsets") {
      return Fail(absl::StrCat("unknown field ", absl::CHexEscape(value.substr(0, 40))));
    }
    field_ = value;
    return true;
  }

  bool end_object() {
    const bool ends_metadata = std::exchange(in_metadata_, false);
    if (--depth_ == 0 || ends_metadata) return true;
    return FinishEntry();
  }

  bool start_array(size_t) {
    if (depth_ != 2 || in_metadata_ || (field_ != "shape" && field_ != "data_offsets")) return Unexpected();
    ++depth_;
    return true;
  }

  bool end_array() {
    --depth_;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
    if (error_.empty()) error_ = absl::StrCat("the header is no JSON at byte ", position);
    return false;
  }

 private:
  bool Fail(std::string what) {
    error_ = std::move(what);
    return false;
  }
  // "__metadata__" is an object of strings; its values are not needed.
  bool MetadataValue() { return depth_ == 2 || Unexpected(); }
  bool Unexpected() { return Fail("the header is not a safetensors header"); }

  bool FinishEntry() {
    if (entry_.type == nullptr) return Fail("dtype: missing");
    if (num_offsets_ != 2) return Fail("data_offsets: two numbers are needed");
    uint64_t elements = 1;
    for (int i = 0; i < num_dimensions_; ++i) {
      if (shape_[i] > kMaxElements / elements) return Fail("shape: too large");
      elements *= shape_[i];
    }
    entry_.cols = num_dimensions_ == 0 ? 1 : static_cast<int64_t>(shape_[num_dimensions_ - 1]);
    entry_.rows = static_cast<int64_t>(elements) / entry_.cols;
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    const uint64_t element_bytes = static_cast<uint64_t>(entry_.type->block_bytes);
    if (entry_.end < entry_.begin || entry_.end - entry_.begin != elements * element_bytes) {
      return Fail("data_offsets: do not fit shape and dtype");
    }
    if (entries_.size() == kMaxTensors) return Fail("too many tensors");
    entries_.push_back(entry_);
    return true;
  }

  std::vector<SafetensorsEntry> entries_;
  std::string error_;
  int depth_ = 0;
  bool in_metadata_ = false;
  // The tensor that is being read.
  SafetensorsEntry entry_;
  std::string field_;
  uint64_t shape_[kMaxDimensions];
  int num_dimensions_ = 0;
  uint64_t offsets_[2];
  int num_offsets_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ReadSafetensorsHeader(absl::Span<const char> header,
                                                                    const std::string& path) {
  HeaderEvents events;
  const bool parsed = nlohmann::json::sax_parse(header.begin(), header.end(), &events);
  if (parsed) return std::move(events.entries());
  const std::string tensor =
      events.name().empty() ? ""
                            : absl::StrCat("tensor ", absl::CHexEscape(events.name().substr(0, 80)), ": ");
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", tensor, events.error()));
}

}  // namespace ridge::worker
