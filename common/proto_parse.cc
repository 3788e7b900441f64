#include "common/proto_parse.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/utf8.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/unknown_field_set.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/slice.h"

namespace ridge {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// As deep as the parser itself goes.
constexpr int kMaxDepth = 100;

// The path of the first string field that is not UTF-8; empty where there is none or the bytes are no
// message.
std::string FindInvalidText(absl::string_view bytes, const Descriptor& descriptor, int depth) {
  if (depth > kMaxDepth) return "";
  CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  std::map<int, int> elements;  // seen so far, by field number
  while (const uint32_t tag = input.ReadTag()) {
    const FieldDescriptor* field = descriptor.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&input, tag)) return "";
      continue;
    }
    uint32_t size;
    if (!input.ReadVarint32(&size)) return "";
    const int begin = input.CurrentPosition();
    if (size > bytes.size() - begin || !input.Skip(static_cast<int>(size))) return "";
    if (field == nullptr) continue;
    const absl::string_view value = bytes.substr(begin, size);
    const int index = elements[field->number()]++;
    const std::string name = field->is_repeated() && !field->is_map()
                                 ? absl::StrCat(field->name(), "[", index, "]")
                                 : field->name();
    if (field->type() == FieldDescriptor::TYPE_STRING && !IsValidUtf8(value)) return name;
    if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
      const std::string inner = FindInvalidText(value, *field->message_type(), depth + 1);
      if (!inner.empty()) return field->is_map() ? name : absl::StrCat(name, ".", inner);
    }
  }
  return "";
}

// The path of the first unknown field, and what is wrong with it; empty where there is none.
struct UnknownField {
  std::string path;
  absl::string_view fault;

  UnknownField Within(absl::string_view outer) const { return {absl::StrCat(outer, ".", path), fault}; }
};

UnknownField FindUnknownField(const google::protobuf::Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) {
    const int number = unknown.field(0).number();
    const FieldDescriptor* known = message.GetDescriptor()->FindFieldByNumber(number);
    if (known != nullptr) return {known->name(), "sent as another type than it has"};
    return {absl::StrCat("field ", number), "unknown to this version"};
  }
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      const UnknownField inner = FindUnknownField(reflection.GetMessage(message, field));
      if (!inner.path.empty()) return inner.Within(field->name());
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      const UnknownField inner = FindUnknownField(reflection.GetRepeatedMessage(message, field, i));
      if (!inner.path.empty()) return inner.Within(absl::StrCat(field->name(), "[", i, "]"));
    }
  }
  return {};
}

std::string Flatten(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string flat;
  if (!bytes.Dump(&slices).ok()) return flat;
  flat.reserve(bytes.Length());
  for (const grpc::Slice& slice : slices)
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return flat;
}

}  // namespace

absl::Status ParseProto(absl::string_view bytes, google::protobuf::Message* message) {
  // Before the parser, which writes a line to stderr for each invalid string: clients must not fill the log.
  const std::string invalid = FindInvalidText(bytes, *message->GetDescriptor(), 0);
  if (!invalid.empty()) return InvalidField(invalid, "not valid UTF-8");
  if (!message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("malformed ", message->GetDescriptor()->name()));
  }
  return absl::OkStatus();
}

absl::Status ParseProto(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  return ParseProto(Flatten(bytes), message);
}

absl::Status RefuseUnknownFields(const google::protobuf::Message& message) {
  const UnknownField unknown = FindUnknownField(message);
  if (unknown.path.empty()) return absl::OkStatus();
  return InvalidField(unknown.path, unknown.fault);
}

grpc::ByteBuffer SerializeProto(const google::protobuf::Message& message) {
  const size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace ridge
