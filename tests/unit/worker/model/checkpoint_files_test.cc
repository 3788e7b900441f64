#include "worker/model/checkpoint_files.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/model/file_builders.h"

namespace ridge::worker {
namespace {

using testing::HasSubstr;

// A directory with shards "a" (tensors x, y) and "b" (tensor z).
class CheckpointFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = WriteFile("model", "");
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
    Put("a.safetensors",
        SafetensorsBuilder().Tensor("x", "F16", "[2]", "xxxx").Tensor("y", "F16", "[1]", "yy").Build());
    Put("b.safetensors", SafetensorsBuilder().Tensor("z", "F16", "[1]", "zz").Build());
    PutMap(R"("x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors")");
  }

  void Put(const std::string& name, const std::string& contents) const {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << contents;
  }
  void PutMap(const std::string& entries) const {
    Put("model.safetensors.index.json",
        R"({"metadata": {"total_size": 8}, "weight_map": {)" + entries + "}}");
  }

  std::string Error() const {
    const auto checkpoint = OpenCheckpointFiles(directory_);
    return checkpoint.ok() ? "no error" : std::string(checkpoint.status().message());
  }
  std::string ErrorOfMap(const std::string& entries) const {
    PutMap(entries);
    return Error();
  }

  std::string directory_;
};

TEST_F(CheckpointFilesTest, GathersTheTensorsOfAllShards) {
  const auto checkpoint = OpenCheckpointFiles(directory_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->files.size(), 2u);
  ASSERT_EQ(checkpoint->tensors.size(), 3u);
  const StoredTensor* z = FindTensor(checkpoint->tensors, "z");
  EXPECT_EQ(std::string(z->data.data(), z->data.size()), "zz");
  EXPECT_EQ(z->file->path(), directory_ + "/b.safetensors");
  EXPECT_EQ(checkpoint->path, directory_ + "/model.safetensors.index.json");
}

TEST_F(CheckpointFilesTest, OneFileGoesBeforeAnIndex) {
  Put("model.safetensors", SafetensorsBuilder().Tensor("w", "F16", "[1]", "ww").Build());
  const auto checkpoint = OpenCheckpointFiles(directory_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->tensors.size(), 1u);
}

TEST_F(CheckpointFilesTest, NamesWhatDoesNotAgree) {
  EXPECT_THAT(ErrorOfMap(R"("x": "a.safetensors", "y": "a.safetensors", "z": "c.safetensors")"),
              HasSubstr(directory_ + "/c.safetensors: cannot open"));
  EXPECT_THAT(ErrorOfMap(R"("x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors")"),
              HasSubstr("index.json: weight_map: y: b.safetensors is given, but it is in "));
  EXPECT_THAT(ErrorOfMap(R"("x": "a.safetensors", "z": "b.safetensors")"),
              HasSubstr("/a.safetensors: tensor y: not in the weight_map"));
  EXPECT_THAT(
      ErrorOfMap(R"("x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors", "w": "b.safetensors")"),
      HasSubstr("/b.safetensors: tensor w: missing"));
  Put("b.safetensors", SafetensorsBuilder().Tensor("x", "F16", "[1]", "zz").Build());
  EXPECT_THAT(ErrorOfMap(R"("x": "a.safetensors", "y": "b.safetensors")"),
              HasSubstr("/b.safetensors: tensor x: also in " + directory_ + "/a.safetensors"));
  Put("b.safetensors", "short");
  EXPECT_THAT(ErrorOfMap(R"("x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors")"),
              HasSubstr("/b.safetensors: truncated"));
}

TEST_F(CheckpointFilesTest, ShardsLieInTheDirectory) {
  for (const char* name :
       {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", "a.bin", "", "..", ".safetensors",
        ".hidden.safetensors", "a\\\\b.safetensors", "a\\u0000.safetensors", "a\\u0000/../b.safetensors"}) {
    EXPECT_THAT(ErrorOfMap(absl::StrCat("\"x\": \"", name, "\"")),
                HasSubstr("model.safetensors.index.json: weight_map: x: not the name of a .safetensors file"))
        << name;
  }
  EXPECT_THAT(ErrorOfMap(R"("x": 3)"), HasSubstr("weight_map: x: not the name"));
}

TEST_F(CheckpointFilesTest, TheIndexIsAnObjectOfModestSize) {
  const auto error = [&](const std::string& index) {
    Put("model.safetensors.index.json", index);
    return Error();
  };
  EXPECT_THAT(error("[]"), HasSubstr("index.json: not a JSON object"));
  EXPECT_THAT(error("{}"), HasSubstr("index.json: weight_map: an object is needed"));
  EXPECT_THAT(error(R"({"weight_map": []})"), HasSubstr("index.json: weight_map: an object is needed"));
  EXPECT_THAT(error("{" + std::string(600 << 10, ' ') + "}"),
              HasSubstr("index.json: 614402 bytes: more than"));
  std::string many = R"({"weight_map": {"t": "s.safetensors")";
  for (int i = 0; i < 1025; ++i) absl::StrAppend(&many, ",\"t", i, "\":\"s", i, ".safetensors\"");
  EXPECT_THAT(error(many + "}}"), HasSubstr("weight_map: 1026 files: more than 1024"));
  std::filesystem::remove(directory_ + "/model.safetensors.index.json");
  EXPECT_THAT(Error(), HasSubstr(directory_ + "/model.safetensors: cannot open"));
}

}  // namespace
}  // namespace ridge::worker
