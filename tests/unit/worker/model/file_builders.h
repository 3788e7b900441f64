// Small model files, written by the tests themselves.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace ridge::worker {

template <typename T>
std::string Bytes(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  std::string bytes;
  for (T value : values) bytes += Bytes(value);
  return bytes;
}

// The file's path; it lies in the tests' temporary directory, one file a test and name.
inline std::string WriteFile(const std::string& name, const std::string& contents) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = testing::TempDir() + test->test_suite_name() + "." + test->name() + "." + name;
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

class GgufBuilder {
 public:
  explicit GgufBuilder(uint32_t version = 3) : version_(version) {}

  static std::string String(const std::string& text) { return Bytes<uint64_t>(text.size()) + text; }

  GgufBuilder& Raw(const std::string& key, uint32_t type, const std::string& value) {
    metadata_ += String(key) + Bytes(type) + value;
    ++num_keys_;
    return *this;
  }
  GgufBuilder& U32(const std::string& key, uint32_t value) { return Raw(key, 4, Bytes(value)); }
  GgufBuilder& F32(const std::string& key, float value) { return Raw(key, 6, Bytes(value)); }
  GgufBuilder& Text(const std::string& key, const std::string& value) { return Raw(key, 8, String(value)); }
  GgufBuilder& Array(const std::string& key, uint32_t type, uint64_t count, const std::string& elements) {
    return Raw(key, 9, Bytes(type) + Bytes(count) + elements);
  }

  // Dimensions as in the file: the fastest first.
  GgufBuilder& Tensor(const std::string& name, std::vector<uint64_t> dimensions, uint32_t type,
                      const std::string& data) {
    data_.resize((data_.size() + 31) / 32 * 32);
    directory_ += String(name) + Bytes(static_cast<uint32_t>(dimensions.size())) + BytesOf(dimensions) +
                  Bytes(type) + Bytes<uint64_t>(data_.size());
    data_ += data;
    ++num_tensors_;
    return *this;
  }

  std::string Build() const {
    std::string file =
        "GGUF" + Bytes(version_) + Bytes(num_tensors_) + Bytes(num_keys_) + metadata_ + directory_;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }

 private:
  uint32_t version_;
  uint64_t num_keys_ = 0;
  uint64_t num_tensors_ = 0;
  std::string metadata_;
  std::string directory_;
  std::string data_;
};

class SafetensorsBuilder {
 public:
  SafetensorsBuilder& Tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                             const std::string& data) {
    if (!header_.empty()) header_ += ",";
    header_ += "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
               std::to_string(data_.size()) + "," + std::to_string(data_.size() + data.size()) + "]}";
    data_ += data;
    return *this;
  }

  std::string Build() const {
    return WithHeader("{\"__metadata__\":{\"format\":\"pt\"}," + header_ + "}", data_);
  }

  static std::string WithHeader(const std::string& header, const std::string& data) {
    return Bytes<uint64_t>(header.size()) + header + data;
  }

 private:
  std::string header_;
  std::string data_;
};

}  // namespace ridge::worker
