#include "common/proto_parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "common/status.h"
#include "google/protobuf/struct.pb.h"
#include "grpcpp/support/slice.h"
#include "ridge/v1/inference.pb.h"

namespace ridge {
namespace {

using ::testing::HasSubstr;

constexpr char kBroken[] = "caf\xC3";

// Wire bytes written by hand: the library warns on stderr when it serialises broken text.
std::string Field(int number, const std::string& value) {
  EXPECT_LT(number, 16);
  EXPECT_LT(value.size(), 128u);
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(value.size())} + value;
}

absl::Status ParseRequest(const std::string& bytes) {
  v1::GenerateRequest request;
  return ParseProto(bytes, &request);
}

TEST(ParseProtoTest, ReadsAValidMessage) {
  v1::GenerateRequest request;
  ASSERT_TRUE(ParseProto(Field(1, "m") + Field(2, "caf\xC3\xA9"), &request).ok());
  EXPECT_EQ(request.model(), "m");
  EXPECT_EQ(request.prompt(), "caf\xC3\xA9");
  EXPECT_TRUE(ParseProto("", &request).ok());
  EXPECT_EQ(request.model(), "");
}

TEST(ParseProtoTest, NamesTheFieldThatIsNotUtf8) {
  EXPECT_EQ(ParseRequest(Field(2, kBroken)), InvalidField("prompt", "not valid UTF-8"));
  EXPECT_EQ(ParseRequest(Field(1, "m") + Field(11, "ok") + Field(11, kBroken)),
            InvalidField("stop[1]", "not valid UTF-8"));
  EXPECT_EQ(ParseRequest(Field(8, Field(12, kBroken))),
            InvalidField("sampling.bad_words[0]", "not valid UTF-8"));
  const std::string good = Field(1, Field(1, "user") + Field(2, "hi"));
  EXPECT_EQ(ParseRequest(Field(4, good + good + Field(1, Field(1, "user") + Field(2, kBroken)))),
            InvalidField("chat.messages[2].content", "not valid UTF-8"));
}

TEST(ParseProtoTest, NamesAMap) {
  google::protobuf::Struct message;  // map<string, Value> fields = 1; Value.string_value = 3
  EXPECT_EQ(ParseProto(Field(1, Field(1, kBroken)), &message), InvalidField("fields", "not valid UTF-8"));
  EXPECT_EQ(ParseProto(Field(1, Field(1, "key") + Field(2, Field(3, kBroken))), &message),
            InvalidField("fields", "not valid UTF-8"));
  EXPECT_TRUE(ParseProto(Field(1, Field(1, "key") + Field(2, Field(3, "value"))), &message).ok());
  EXPECT_EQ(message.fields().at("key").string_value(), "value");
}

TEST(ParseProtoTest, BytesFieldsAndUnknownFieldsMayHoldAnything) {
  v1::Token token;
  EXPECT_TRUE(ParseProto(Field(3, kBroken), &token).ok());
  EXPECT_EQ(token.bytes(), kBroken);
  EXPECT_TRUE(ParseProto(Field(15, kBroken), &token).ok());
}

TEST(ParseProtoTest, MalformedBytesAreInvalidArgument) {
  const absl::Status malformed = absl::InvalidArgumentError("malformed GenerateRequest");
  EXPECT_EQ(ParseRequest("\x12\x05hi"), malformed);                   // ends early
  EXPECT_EQ(ParseRequest("\x12\xFF\xFF\xFF\xFF\x0F"), malformed);     // a length of 4 GiB
  EXPECT_EQ(ParseRequest(std::string(1, '\0')), malformed);           // field number 0
  EXPECT_EQ(ParseRequest("\x80"), malformed);                         // half a varint
  EXPECT_EQ(ParseRequest(Field(4, "\x0A\x7Fx")), malformed);          // a message inside ends early
  EXPECT_EQ(ParseRequest(Field(2, "fine") + "\x0F\x01"), malformed);  // wire type 7
}

TEST(ParseProtoTest, EveryCutAndEveryFlippedByteEndsInAStatus) {
  const std::string good = Field(1, "model") + Field(4, Field(1, Field(1, "user") + Field(2, "hello"))) +
                           Field(8, Field(12, "word")) + Field(11, "stop");
  for (size_t i = 0; i < good.size(); ++i) {
    v1::GenerateRequest request;
    (void)ParseProto(absl::string_view(good).substr(0, i), &request);
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = good;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      const absl::Status status = ParseProto(flipped, &request);
      if (!status.ok()) {
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << i << " " << bit;
      }
    }
  }
}

TEST(ParseProtoTest, DeepNestingIsRefusedWithoutDeepRecursion) {
  google::protobuf::Value value;  // list_value = 6, of Value = 1
  std::string bytes;
  for (int depth = 0; depth < 20000; ++depth) {
    std::string size;  // as a varint
    for (size_t rest = bytes.size(); size.empty() || rest > 0; rest >>= 7) {
      size.push_back(static_cast<char>((rest & 0x7F) | (rest > 0x7F ? 0x80 : 0)));
    }
    bytes.insert(0, (depth % 2 == 0 ? "\x0A" : "\x32") + size);
  }
  EXPECT_EQ(ParseProto(bytes, &value), absl::InvalidArgumentError("malformed Value"));
}

TEST(ParseProtoTest, ReadsByteBuffersOfSeveralSlices) {
  const std::string bytes = Field(2, "a prompt in pieces");
  const std::vector<grpc::Slice> slices = {grpc::Slice(bytes.substr(0, 3)), grpc::Slice(bytes.substr(3))};
  v1::GenerateRequest request;
  ASSERT_TRUE(ParseProto(grpc::ByteBuffer(slices.data(), slices.size()), &request).ok());
  EXPECT_EQ(request.prompt(), "a prompt in pieces");
}

std::string UnknownIn(const std::string& bytes) {
  v1::GenerateRequest request;
  EXPECT_TRUE(ParseProto(bytes, &request).ok());
  return std::string(RefuseUnknownFields(request).message());
}

TEST(RefuseUnknownFieldsTest, NamesTheFirstFieldThatIsNotKnown) {
  EXPECT_EQ(UnknownIn(Field(1, "m") + "\x82\x02\x01x"), "field 32: unknown to this version");  // reserved
  EXPECT_EQ(UnknownIn(Field(8, "\x70\x01")), "sampling.field 14: unknown to this version");
  const std::string message = Field(2, "hi");
  EXPECT_EQ(UnknownIn(Field(4, Field(1, message) + Field(1, message + "\x78\x01"))),
            "chat.messages[1].field 15: unknown to this version");
  EXPECT_EQ(UnknownIn(Field(9, "8")), "max_tokens: sent as another type than it has");
}

TEST(RefuseUnknownFieldsTest, KnownFieldsAreFine) {
  v1::GenerateRequest request;
  request.mutable_chat()->add_messages()->set_content("hi");
  (*request.mutable_sampling()->mutable_logit_bias())[3] = 1;
  request.set_n(1);
  EXPECT_TRUE(RefuseUnknownFields(request).ok());
}

TEST(SerializeProtoTest, ComesBackAsItWas) {
  for (const size_t size : {size_t{0}, size_t{5}, size_t{100'000}}) {  // inlined and allocated slices
    v1::GenerateRequest request;
    request.set_prompt(std::string(size, 'x'));
    request.mutable_sampling()->set_temperature(0.5f);
    v1::GenerateRequest back;
    ASSERT_TRUE(ParseProto(SerializeProto(request), &back).ok());
    EXPECT_EQ(back.prompt(), request.prompt());
    EXPECT_EQ(back.sampling().temperature(), 0.5f);
  }
}

}  // namespace
}  // namespace ridge
