#include "worker/model/safetensors.h"

#include <random>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/model/file_builders.h"

namespace ridge::worker {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& contents) {
  const auto file = SafetensorsFile::Open(WriteFile("model.safetensors", contents));
  return file.ok() ? "no error" : std::string(file.status().message());
}

std::string ErrorOfHeader(const std::string& header) {
  return ErrorOf(SafetensorsBuilder::WithHeader(header, std::string(64, '\0')));
}

TEST(SafetensorsFile, FindsTensorsAndTheirBytes) {
  SafetensorsBuilder builder;
  builder.Tensor("half", "F16", "[2,3]", std::string(12, 'h'))
      .Tensor("float", "F32", "[2]", std::string(8, 'f'));
  builder.Tensor("brain", "BF16", "[1,2,2]", std::string(8, 'b'))
      .Tensor("scalar", "F32", "[]", std::string(4, 's'));
  const auto file = SafetensorsFile::Open(WriteFile("model.safetensors", builder.Build()));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 4u);
  const StoredTensor* half = FindTensor((*file)->tensors(), "half");
  ASSERT_NE(half, nullptr);
  EXPECT_EQ(half->rows, 2);
  EXPECT_EQ(half->cols, 3);
  EXPECT_EQ(std::string(half->data.data(), half->data.size()), std::string(12, 'h'));
  EXPECT_EQ(FindTensor((*file)->tensors(), "float")->rows, 1);
  EXPECT_EQ(FindTensor((*file)->tensors(), "float")->cols, 2);
  EXPECT_EQ(FindTensor((*file)->tensors(), "float")->data[0], 'f');
  EXPECT_EQ(FindTensor((*file)->tensors(), "brain")->rows, 2);
  EXPECT_EQ(FindTensor((*file)->tensors(), "brain")->type, &kBf16);
  EXPECT_EQ(FindTensor((*file)->tensors(), "scalar")->cols, 1);
  EXPECT_EQ(FindTensor((*file)->tensors(), "other"), nullptr);
}

TEST(SafetensorsFile, RefusesHostileHeaders) {
  EXPECT_THAT(ErrorOf(Bytes<uint64_t>(~0ull) + "{}"), HasSubstr("not a safetensors file"));
  EXPECT_THAT(ErrorOf(Bytes<uint64_t>(100) + "{}"), HasSubstr("truncated in the header"));
  EXPECT_THAT(ErrorOf("1234"), HasSubstr("truncated in the header's length"));
  for (const char* header : {"",
                             "[]",
                             "[1]",
                             "3",
                             "\"x\"",
                             "{",
                             "{\"a\":1}",
                             "{\"a\":[]}",
                             "{\"a\":{\"shape\":{}}}",
                             "{\"a\":{\"shape\":[[1]]}}",
                             "{\"a\":{\"dtype\":1}}",
                             "{\"a\":{\"shape\":[1.5]}}",
                             "{\"a\":{\"shape\":[-1]}}",
                             "{\"a\":{\"shape\":[\"1\"]}}",
                             "{\"a\":null}",
                             "{\"a\":true}",
                             "\xff\xfe",
                             "{\"__metadata__\":{\"a\":{\"b\":{}}}}",
                             "{\"__metadata__\":3}",
                             "{}{}",
                             "null"}) {
    EXPECT_THAT(ErrorOfHeader(header), HasSubstr("model.safetensors: ")) << header;
  }
  EXPECT_THAT(ErrorOfHeader(std::string(1 << 16, '[')), HasSubstr("model.safetensors: "));
  std::string deep = "{\"a\":";
  for (int i = 0; i < 1 << 16; ++i) deep += "{\"a\":";
  EXPECT_THAT(ErrorOfHeader(deep), HasSubstr("model.safetensors: "));
}

TEST(SafetensorsFile, NamesTensorAndField) {
  const auto entry = [](const std::string& fields) { return ErrorOfHeader("{\"t\":{" + fields + "}}"); };
  EXPECT_EQ(entry("\"dtype\":\"F16\",\"shape\":[4,8],\"data_offsets\":[0,64]"), "no error");
  EXPECT_THAT(entry("\"shape\":[4,8],\"data_offsets\":[0,64]"), HasSubstr("tensor t: dtype: missing"));
  EXPECT_THAT(entry("\"dtype\":\"I64\",\"shape\":[8],\"data_offsets\":[0,64]"),
              HasSubstr("tensor t: dtype I64 is not supported"));
  EXPECT_THAT(entry("\"dtype\":\"F16\",\"shape\":[4,8]"), HasSubstr("tensor t: data_offsets: two numbers"));
  EXPECT_THAT(entry("\"dtype\":\"F16\",\"shape\":[4,8],\"data_offsets\":[0,62]"),
              HasSubstr("tensor t: data_offsets: do not fit"));
  EXPECT_THAT(entry("\"dtype\":\"F16\",\"shape\":[4,8],\"data_offsets\":[64,0]"),
              HasSubstr("tensor t: data_offsets: do not fit"));
  EXPECT_THAT(entry("\"dtype\":\"F16\",\"shape\":[4,8],\"data_offsets\":[0,32,64]"),
              HasSubstr("tensor t: data_offsets: more than two"));
  EXPECT_THAT(entry("\"dtype\":\"F16\",\"shape\":[4,8],\"data_offsets\":[64,128]"),
              HasSubstr("tensor t: ends at byte 128 of 64"));
  EXPECT_THAT(entry("\"dtype\":\"F16\",\"shape\":[0],\"data_offsets\":[0,0]"), HasSubstr("tensor t: shape"));
  EXPECT_THAT(entry("\"dtype\":\"F16\",\"shape\":[281474976710656,281474976710656],\"data_offsets\":[0,64]"),
              HasSubstr("tensor t: shape: too large"));
  EXPECT_THAT(entry("\"dtype\":\"F16\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,2]"),
              HasSubstr("tensor t: shape: too many"));
  EXPECT_THAT(entry("\"dtype\":\"F16\",\"stride\":[1]"), HasSubstr("tensor t: unknown field stride"));
  const std::string good = "{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}";
  EXPECT_THAT(ErrorOfHeader("{\"t\":" + good + ",\"t\":" + good + "}"), HasSubstr("given twice"));
}

// A tensor of zeros that another one's bytes, or none, stand for would load without a word.
TEST(SafetensorsFile, TensorsCoverTheDataOnceAndWhole) {
  const auto error = [](int first_end, int second_begin, int data_bytes) {
    const auto tensor = [](const char* name, int begin, int end) {
      return absl::StrFormat("\"%s\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[%d,%d]}", name,
                             (end - begin) / 4, begin, end);
    };
    const std::string header =
        absl::StrFormat("{%s,%s}", tensor("b", second_begin, second_begin + 8), tensor("a", 0, first_end));
    return ErrorOf(SafetensorsBuilder::WithHeader(header, std::string(data_bytes, 'x')));
  };
  EXPECT_EQ(error(8, 8, 16), "no error");
  EXPECT_THAT(error(8, 4, 12),
              HasSubstr("tensor b: data_offsets: begins at byte 4, where the tensor before it ends at 8"));
  EXPECT_THAT(error(8, 12, 20), HasSubstr("begins at byte 12, where the tensor before it ends at 8"));
  EXPECT_THAT(error(8, 8, 20), HasSubstr("4 bytes of data belong to no tensor"));
}

TEST(SafetensorsFile, TruncationAtEveryLengthIsAnError) {
  SafetensorsBuilder builder;
  builder.Tensor("a", "F16", "[2,3]", std::string(12, 'a')).Tensor("b", "F32", "[2]", std::string(8, 'b'));
  const std::string whole = builder.Build();
  ASSERT_EQ(ErrorOf(whole), "no error");
  for (size_t length = 1; length < whole.size(); ++length) {
    EXPECT_THAT(ErrorOf(whole.substr(0, length)), HasSubstr("model.safetensors: ")) << length;
  }
}

TEST(SafetensorsFile, MutatedHeadersAreRefusedOrRead) {
  SafetensorsBuilder builder;
  builder.Tensor("a", "F16", "[2,3]", std::string(12, 'a')).Tensor("b", "F32", "[2]", std::string(8, 'b'));
  const std::string whole = builder.Build();
  std::mt19937 random(12);
  for (int i = 0; i < 2000; ++i) {
    std::string mutated = whole;
    for (uint32_t count = 1 + random() % 3; count > 0; --count) {
      mutated[random() % whole.size()] = "0123456789{}[],:\"\\ax"[random() % 20];
    }
    const std::string error = ErrorOf(mutated);
    ASSERT_TRUE(error == "no error" || error.find("model.safetensors: ") != std::string::npos) << error;
    ASSERT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace ridge::worker
