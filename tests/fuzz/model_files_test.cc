// Damaged model files: an error that names the file, or a model that can be read; never a crash, a hang, or
// memory beyond the file's size and 64 MiB.
//
// RIDGE_FUZZ_MUTATIONS sets how many mutations of each kind are tried, in place of a number that takes a
// second.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fuzz/counting_new.h"
#include "tests/fuzz/mutation.h"
#include "worker/model/open_model.h"
#include "worker/model/safetensors.h"

namespace ridge::worker {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMemoryBeyondFile = 64 << 20;

int Mutations() {
  const char* given = std::getenv("RIDGE_FUZZ_MUTATIONS");
  return given == nullptr ? 300 : std::atoi(given);
}

std::string ReadFile(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(std::string(RIDGE_TEST_DATA_DIR) + "/" + name, std::ios::binary).rdbuf();
  return text.str();
}

class DamagedModel : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = fs::path(testing::TempDir()) / absl::StrCat("DamagedModel.", test->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  void Put(const std::string& name, const std::string& contents) const {
    std::ofstream(directory_ / name, std::ios::binary) << contents;
  }

  // A checkpoint in two shards.
  void PutShards() const {
    Put("config.json", ReadFile("tiny-qwen3/config.json"));
    const auto file =
        SafetensorsFile::Open(std::string(RIDGE_TEST_DATA_DIR) + "/tiny-qwen3/model.safetensors").value();
    std::string headers[2], data[2], map;
    int i = 0;
    for (const auto& [name, tensor] : file->tensors()) {
      const int shard = i++ % 2;
      absl::StrAppend(&headers[shard], headers[shard].empty() ? "{" : ",", "\"", name,
                      "\":{\"dtype\":\"F16\",\"shape\":[", tensor.rows, ",", tensor.cols,
                      "],\"data_offsets\":[", data[shard].size(), ",",
                      data[shard].size() + tensor.data.size(), "]}");
      data[shard].append(tensor.data.data(), tensor.data.size());
      absl::StrAppend(&map, map.empty() ? "" : ",", "\"", name, "\":\"s", shard, ".safetensors\"");
    }
    for (int shard = 0; shard < 2; ++shard) {
      headers[shard] += "}";
      const uint64_t size = headers[shard].size();
      Put(absl::StrCat("s", shard, ".safetensors"),
          std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + headers[shard] + data[shard]);
    }
    Put("model.safetensors.index.json", "{\"metadata\":{\"total_size\":1},\"weight_map\":{" + map + "}}");
  }

  // Opens and reads everything. The result has to be an error in one printable line that names `file`, or
  // success. Returns whether it was read.
  bool Try(const fs::path& model, const std::string& file, const std::string& what) const {
    RestartPeakAllocation();
    const absl::Status status = Read(model.string());
    int64_t size = 0;
    for (const auto& entry : fs::directory_iterator(directory_))
      size += static_cast<int64_t>(entry.file_size());
    EXPECT_LE(PeakAllocation(), size + kMemoryBeyondFile) << what;
    if (status.ok()) return true;
    const std::string message(status.message());
    EXPECT_EQ(message.rfind((directory_ / "").string(), 0), 0u) << what << ": " << message;
    if (!file.empty()) {
      EXPECT_NE(message.find("/" + file + ": "), std::string::npos) << what << ": " << message;
    }
    for (char c : message) EXPECT_TRUE(c >= ' ' && c <= '~') << what << ": " << message;
    EXPECT_LE(message.size(), 600u) << what << ": " << message;
    return false;
  }

  static absl::Status Read(const std::string& model) {
    absl::StatusOr<std::unique_ptr<WeightSource>> source = OpenModel(model);
    if (!source.ok()) return source.status();
    absl::Status status;
    for (TensorId id : TensorsOf((*source)->config())) {
      const TensorShape shape = ShapeOf((*source)->config(), id);
      std::vector<Half> row(static_cast<size_t>(shape.cols));
      for (int64_t r = 0; r < shape.rows && status.ok(); r += 1 + shape.rows / 16)
        status = (*source)->ReadRows(id, r, 1, absl::MakeSpan(row));
    }
    if ((*source)->Fingerprint().size() != 64) return absl::InternalError("no fingerprint");
    return status;
  }

  // Files cut at every hundredth of their length.
  void Truncate(const fs::path& model, const std::string& file, const std::string& whole) const {
    for (int percent = 0; percent < 100; ++percent) {
      Put(file, whole.substr(0, whole.size() * static_cast<size_t>(percent) / 100));
      EXPECT_FALSE(Try(model, file, absl::StrCat(percent, " %"))) << percent;
    }
    Put(file, whole);
    EXPECT_TRUE(Try(model, file, "whole"));
  }

  // `length`: of the part that is damaged. Where a file's error may show elsewhere, `named` is empty.
  template <class Damage>
  void Mutate(const fs::path& model, const std::string& file, const std::string& named,
              const std::string& whole, const Damage& damage) const {
    int read = 0;
    const int mutations = Mutations();
    for (int i = 0; i < mutations && !HasFailure(); ++i) {
      Mutator mutator(static_cast<uint64_t>(i));
      Put(file, damage(mutator, whole));
      read += Try(model, named, absl::StrCat("seed ", i)) ? 1 : 0;
    }
    EXPECT_LT(read, mutations);
    Put(file, whole);
    EXPECT_TRUE(Try(model, named, "whole"));
    RecordProperty("read", read);
  }

  fs::path directory_;
};

// Up to where the tensors' data begin.
size_t GgufHeader(const std::string& whole) {
  return whole.rfind(".weight") + 64;
}

TEST_F(DamagedModel, GgufIsTruncated) {
  Truncate(directory_ / "m.gguf", "m.gguf", ReadFile("gguf/tiny-llama3.gguf"));
}

TEST_F(DamagedModel, GgufHeaderIsMutated) {
  const std::string whole = ReadFile("gguf/tiny-llama3.gguf");
  const size_t header = GgufHeader(whole);
  Mutate(directory_ / "m.gguf", "m.gguf", "m.gguf", whole,
         [&](Mutator& mutator, const std::string& text) { return mutator.Binary(text, header); });
}

TEST_F(DamagedModel, GgufTypesAreMutated) {
  const std::string whole = ReadFile("gguf/tiny-qwen3.gguf");
  const size_t header = GgufHeader(whole);
  Mutate(directory_ / "m.gguf", "m.gguf", "m.gguf", whole,
         [&](Mutator& mutator, const std::string& text) { return mutator.Binary(text, header); });
}

TEST_F(DamagedModel, SafetensorsIsTruncated) {
  Put("config.json", ReadFile("tiny-llama/config.json"));
  Truncate(directory_, "model.safetensors", ReadFile("tiny-llama/model.safetensors"));
}

TEST_F(DamagedModel, SafetensorsHeaderIsMutated) {
  Put("config.json", ReadFile("tiny-llama/config.json"));
  const std::string whole = ReadFile("tiny-llama/model.safetensors");
  uint64_t header;
  std::memcpy(&header, whole.data(), sizeof(header));
  Mutate(directory_, "model.safetensors", "model.safetensors", whole,
         [&](Mutator& mutator, const std::string& text) {
           return mutator.Below(2) == 0 ? mutator.Binary(text, header + 8) : mutator.Json(text, header + 8);
         });
}

TEST_F(DamagedModel, IndexIsTruncated) {
  PutShards();
  std::ostringstream whole;
  whole << std::ifstream(directory_ / "model.safetensors.index.json").rdbuf();
  Truncate(directory_, "model.safetensors.index.json", whole.str());
}

TEST_F(DamagedModel, IndexIsMutated) {
  PutShards();
  std::ostringstream whole;
  whole << std::ifstream(directory_ / "model.safetensors.index.json").rdbuf();
  Mutate(directory_, "model.safetensors.index.json", "", whole.str(),
         [&](Mutator& mutator, const std::string& text) { return mutator.Json(text, text.size()); });
}

TEST_F(DamagedModel, ConfigIsTruncated) {
  Put("model.safetensors", ReadFile("tiny-llama3/model.safetensors"));
  Truncate(directory_, "config.json", ReadFile("tiny-llama3/config.json"));
}

TEST_F(DamagedModel, ConfigIsMutated) {
  Put("model.safetensors", ReadFile("tiny-llama3/model.safetensors"));
  for (const char* config : {"tiny-llama3/config.json", "tiny-llama3/config.v5.json"}) {
    Mutate(directory_, "config.json", "", ReadFile(config),
           [&](Mutator& mutator, const std::string& text) { return mutator.Json(text, text.size()); });
  }
}

TEST_F(DamagedModel, GenerationConfigIsMutated) {
  Put("config.json", ReadFile("tiny-llama/config.json"));
  Put("model.safetensors", ReadFile("tiny-llama/model.safetensors"));
  Mutate(directory_, "generation_config.json", "generation_config.json",
         "{\"bos_token_id\": 1, \"eos_token_id\": [2, 3], \"temperature\": 0.6, \"do_sample\": true}",
         [&](Mutator& mutator, const std::string& text) { return mutator.Json(text, text.size()); });
}

}  // namespace
}  // namespace ridge::worker
