// Messages from and to gRPC's raw bytes.
//
// A service that takes raw bytes can say which field of a request is wrong: the protobuf parser refuses a
// `string` that is not UTF-8 without naming it. Thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

namespace ridge {

// INVALID_ARGUMENT names the field whose text is not UTF-8 ("chat.messages[2].content: not valid UTF-8"), or
// says that the message is malformed.
absl::Status ParseProto(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);
absl::Status ParseProto(absl::string_view bytes, google::protobuf::Message* message);

// INVALID_ARGUMENT names the first field that this version does not know ("sampling.field 13: unknown to this
// version"): leaving it out could change what the request means.
absl::Status RefuseUnknownFields(const google::protobuf::Message& message);

grpc::ByteBuffer SerializeProto(const google::protobuf::Message& message);

}  // namespace ridge
