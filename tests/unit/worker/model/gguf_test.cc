#include "worker/model/gguf.h"

#include <sys/stat.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/model/file_builders.h"

namespace ridge::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& contents) {
  return GgufFile::Open(WriteFile("model.gguf", contents));
}

std::string ErrorOf(const std::string& contents) {
  const auto file = Open(contents);
  return file.ok() ? "no error" : std::string(file.status().message());
}

TEST(GgufFile, ReadsEveryValueType) {
  for (uint32_t version : {2u, 3u}) {
    GgufBuilder builder(version);
    builder.Raw("u8", 0, Bytes<uint8_t>(200))
        .Raw("i8", 1, Bytes<int8_t>(-5))
        .Raw("u16", 2, Bytes<uint16_t>(60000));
    builder.Raw("i16", 3, Bytes<int16_t>(-300))
        .U32("u32", 4000000000u)
        .Raw("i32", 5, Bytes<int32_t>(-7))
        .F32("f32", 1.5f);
    builder.Raw("yes", 7, Bytes<uint8_t>(1)).Raw("no", 7, Bytes<uint8_t>(0)).Text("text", "h\xc3\xa9llo");
    builder.Raw("u64", 10, Bytes<uint64_t>(1ull << 40)).Raw("i64", 11, Bytes<int64_t>(-(1ll << 40)));
    builder.Raw("f64", 12, Bytes<double>(-2.25)).Array("ids", 5, 3, BytesOf<int32_t>({3, -1, 2}));
    builder.Array("scores", 6, 2, BytesOf<float>({0.5f, -1.0f}));
    builder.Array("pieces", 8, 3,
                  GgufBuilder::String("a") + GgufBuilder::String("") + GgufBuilder::String("bc"));
    builder.Array("none", 8, 0, "");
    const auto file = Open(builder.Build());
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->GetInt("u8").value(), 200);
    EXPECT_EQ((*file)->GetInt("i8").value(), -5);
    EXPECT_EQ((*file)->GetInt("u16").value(), 60000);
    EXPECT_EQ((*file)->GetInt("i16").value(), -300);
    EXPECT_EQ((*file)->GetInt("u32").value(), 4000000000);
    EXPECT_EQ((*file)->GetInt("i32").value(), -7);
    EXPECT_EQ((*file)->GetInt("u64").value(), 1ll << 40);
    EXPECT_EQ((*file)->GetInt("i64").value(), -(1ll << 40));
    EXPECT_EQ((*file)->GetFloat("f32").value(), 1.5);
    EXPECT_EQ((*file)->GetFloat("f64").value(), -2.25);
    EXPECT_TRUE((*file)->GetBool("yes").value());
    EXPECT_FALSE((*file)->GetBool("no").value());
    EXPECT_EQ((*file)->GetString("text").value(), "h\xc3\xa9llo");
    EXPECT_THAT((*file)->GetIntArray("ids").value(), ElementsAre(3, -1, 2));
    EXPECT_THAT((*file)->GetFloatArray("scores").value(), ElementsAre(0.5, -1.0));
    EXPECT_THAT((*file)->GetStringArray("pieces").value(), ElementsAre("a", "", "bc"));
    EXPECT_TRUE((*file)->GetStringArray("none").value().empty());
    EXPECT_TRUE((*file)->Has("u8"));
    EXPECT_FALSE((*file)->Has("u9"));
  }
}

TEST(GgufFile, GettersNameKeyAndKind) {
  const auto file =
      Open(GgufBuilder().U32("n", 1).Text("t", "x").Raw("big", 10, Bytes<uint64_t>(~0ull)).Build());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->GetInt("missing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT((*file)->GetInt("missing").status().message(),
              HasSubstr("model.gguf: metadata missing: missing"));
  EXPECT_THAT((*file)->GetInt("t").status().message(), HasSubstr("metadata t: not an integer"));
  EXPECT_THAT((*file)->GetInt("big").status().message(),
              HasSubstr("metadata big: not an integer of 63 bits"));
  EXPECT_THAT((*file)->GetString("n").status().message(), HasSubstr("metadata n: not a string"));
  EXPECT_THAT((*file)->GetFloat("n").status().message(), HasSubstr("metadata n: not a float"));
  EXPECT_THAT((*file)->GetBool("n").status().message(), HasSubstr("metadata n: not a bool"));
  EXPECT_THAT((*file)->GetIntArray("n").status().message(), HasSubstr("metadata n: not an array"));
}

TEST(GgufFile, FindsTensorsAndTheirBytes) {
  GgufBuilder builder;
  builder.Text("general.architecture", "x");
  builder.Tensor("a", {2, 3}, kF32.ggml_id, BytesOf<float>({1, 2, 3, 4, 5, 6}));
  builder.Tensor("b", {32, 2, 2}, 8, std::string(4 * 34, 'q'));
  const auto file = Open(builder.Build());
  ASSERT_TRUE(file.ok()) << file.status();
  const StoredTensor* a = FindTensor((*file)->tensors(), "a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->rows, 3);
  EXPECT_EQ(a->cols, 2);
  EXPECT_EQ(a->row_bytes(), 8);
  EXPECT_EQ(std::string(a->data.data(), a->data.size()), BytesOf<float>({1, 2, 3, 4, 5, 6}));
  const StoredTensor* b = FindTensor((*file)->tensors(), "b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->rows, 4);
  EXPECT_EQ(b->row_bytes(), 34);
  EXPECT_EQ(std::string(b->data.data(), b->data.size()), std::string(4 * 34, 'q'));
  EXPECT_EQ(FindTensor((*file)->tensors(), "c"), nullptr);
  EXPECT_EQ((*file)->tensors().size(), 2u);
}

TEST(GgufFile, RefusesHostileHeaders) {
  const std::string magic = "GGUF";
  const auto header = [&](uint32_t version, uint64_t tensors, uint64_t keys) {
    return magic + Bytes(version) + Bytes(tensors) + Bytes(keys);
  };
  EXPECT_THAT(ErrorOf("GGML" + std::string(40, '\0')), HasSubstr("not a GGUF file"));
  EXPECT_THAT(ErrorOf(header(1, 0, 0)), HasSubstr("version 1 is not supported"));
  EXPECT_THAT(ErrorOf(header(0x03000000, 0, 0)), HasSubstr("big-endian"));
  EXPECT_THAT(ErrorOf(header(3, 0, ~0ull)), HasSubstr("metadata keys: more than"));
  EXPECT_THAT(ErrorOf(header(3, ~0ull, 0)), HasSubstr("tensors: more than"));
  EXPECT_THAT(ErrorOf(header(3, 0, 1) + Bytes<uint64_t>(~0ull)),
              HasSubstr("truncated in metadata key 1 of 1"));
  EXPECT_THAT(ErrorOf(GgufBuilder().Raw("k", 13, "").Build()),
              HasSubstr("metadata k: unknown value type 13"));
  EXPECT_THAT(ErrorOf(GgufBuilder().Array("k", 4, ~0ull, "").Build()), HasSubstr("metadata k:"));
  EXPECT_THAT(ErrorOf(GgufBuilder().Array("k", 4, 1 << 20, "").Build()), HasSubstr("metadata k: truncated"));
  EXPECT_THAT(ErrorOf(GgufBuilder().Array("k", 9, 1, "").Build()), HasSubstr("arrays of arrays"));
  EXPECT_THAT(ErrorOf(GgufBuilder().U32("k", 1).U32("k", 2).Build()), HasSubstr("metadata k: given twice"));
  EXPECT_THAT(ErrorOf(GgufBuilder().U32("general.alignment", 24).Build()), HasSubstr("not a power of two"));
  EXPECT_THAT(ErrorOf(GgufBuilder().U32("general.alignment", 0).Build()), HasSubstr("not a power of two"));
}

TEST(GgufFile, RefusesHostileTensors) {
  const auto with = [](std::vector<uint64_t> dimensions, uint32_t type, size_t bytes) {
    return ErrorOf(GgufBuilder().Tensor("t", std::move(dimensions), type, std::string(bytes, '\0')).Build());
  };
  EXPECT_EQ(with({4}, kF32.ggml_id, 16), "no error");
  EXPECT_THAT(with({1ull << 62, 4}, kF32.ggml_id, 16), HasSubstr("tensor t: dimension 0"));
  EXPECT_THAT(with({16, 1ull << 60}, kF32.ggml_id, 16), HasSubstr("tensor t: dimension 1"));
  EXPECT_THAT(with({0}, kF32.ggml_id, 16), HasSubstr("tensor t: dimension 0"));
  EXPECT_THAT(with({1, 1, 1, 1, 1}, kF32.ggml_id, 4), HasSubstr("tensor t: 5 dimensions"));
  EXPECT_THAT(with({}, kF32.ggml_id, 4), HasSubstr("tensor t: 0 dimensions"));
  EXPECT_THAT(with({4}, 99, 16), HasSubstr("tensor t: data type 99 is not supported"));
  EXPECT_THAT(with({33}, 8, 68), HasSubstr("tensor t: rows of 33 elements are not whole Q8_0 blocks"));
  EXPECT_THAT(with({5}, kF32.ggml_id, 16), HasSubstr("tensor t: its 20 bytes at offset 0 end after"));
  GgufBuilder twice;
  twice.Tensor("t", {1}, kF32.ggml_id, "1234").Tensor("t", {1}, kF32.ggml_id, "1234");
  EXPECT_THAT(ErrorOf(twice.Build()), HasSubstr("tensor t: given twice"));
}

// A tensor that the directory leaves out would be missed in silence where a model can do without it.
TEST(GgufFile, TensorsCoverTheDataOnceAndWhole) {
  const auto error = [](uint64_t second_offset, size_t extra) {
    GgufBuilder builder;
    builder.Tensor("a", {8}, 0, std::string(32, 'a')).Tensor("b", {8}, 0, std::string(32, 'b'));
    std::string file = builder.Build();
    const size_t at = file.find(GgufBuilder::String("b")) + GgufBuilder::String("b").size() + 4 + 8 + 4;
    file.replace(at, 8, Bytes<uint64_t>(second_offset));
    const auto opened = GgufFile::Open(WriteFile("model.gguf", file + std::string(extra, 'x')));
    return opened.ok() ? "no error" : std::string(opened.status().message());
  };
  EXPECT_EQ(error(32, 0), "no error");
  EXPECT_THAT(error(0, 0), HasSubstr("where the tensor before it ends"));
  EXPECT_THAT(error(64, 32), HasSubstr("tensor b: begins at byte"));
  EXPECT_THAT(error(32, 32), HasSubstr("32 bytes of data belong to no tensor"));
}

TEST(GgufFile, MessagesStayInOneLine) {
  const std::string error = ErrorOf(GgufBuilder().Raw("a\nb\x01", 99, "").Build());
  EXPECT_EQ(error.find('\n'), std::string::npos);
  EXPECT_THAT(error, HasSubstr("a\\nb\\x01"));
}

TEST(GgufFile, NamesTheMissingFile) {
  EXPECT_THAT(GgufFile::Open("/nowhere/model.gguf").status().message(), HasSubstr("/nowhere/model.gguf"));
  EXPECT_EQ(GgufFile::Open("/nowhere/model.gguf").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(GgufFile::Open(testing::TempDir()).status().message(), HasSubstr("not a regular file"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("the file is empty"));
}

// To open one for reading waits for a writer, which never comes.
TEST(GgufFile, APipeIsRefusedAtOnce) {
  const std::string path = testing::TempDir() + "/pipe.gguf";
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(GgufFile::Open(path).status().message(), path + ": not a regular file");
  unlink(path.c_str());
}

// Every prefix of a file that uses all features is refused or, where only padding is cut, read.
TEST(GgufFile, TruncationAtEveryLengthIsAnError) {
  GgufBuilder builder;
  builder.U32("n", 7).Text("text", "some text").Array("ids", 5, 3, BytesOf<int32_t>({3, -1, 2}));
  builder.Array("pieces", 8, 2, GgufBuilder::String("a") + GgufBuilder::String("bc"));
  builder.Tensor("a", {2, 3}, kF32.ggml_id, BytesOf<float>({1, 2, 3, 4, 5, 6}))
      .Tensor("b", {32}, 3, std::string(20, 'q'));
  const std::string whole = builder.Build();
  ASSERT_EQ(ErrorOf(whole), "no error");
  for (size_t length = 1; length < whole.size(); ++length) {
    EXPECT_THAT(ErrorOf(whole.substr(0, length)), HasSubstr("model.gguf: ")) << length;
  }
}

}  // namespace
}  // namespace ridge::worker
