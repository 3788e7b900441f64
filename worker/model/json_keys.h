// Reading of the small JSON files beside a model's weights. Whatever is in them, errors name file and key,
// and memory stays bounded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace ridge::worker {

// INVALID_ARGUMENT naming `path`.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, const std::string& path);
// Of a file. NOT_FOUND and so on, naming it.
absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& path);

// Reads keys of an object into fields; the first error stays. A key that is null counts as missing. The
// object outlives the reader.
class JsonKeys {
 public:
  // `origin` is for messages: a path, and the key of the object where it is not the whole file.
  JsonKeys(const nlohmann::json& object, std::string origin) : object_(object), origin_(std::move(origin)) {}

  const std::string& origin() const { return origin_; }
  const absl::Status& status() const { return status_; }
  void Update(const absl::Status& status) { status_.Update(status); }

  const nlohmann::json* Find(const char* key) const;
  bool Has(const char* key) const { return Find(key) != nullptr; }

  int32_t Int(const char* key);  // has to be there; not negative, as all that follow
  int32_t IntOr(const char* key, int32_t fallback);
  float FloatOr(const char* key, float fallback);
  double Positive(const char* key);  // has to be there; finite
  bool BoolOr(const char* key, bool fallback);
  std::string StringOr(const char* key, const char* fallback);
  std::vector<int32_t> Ids(const char* key);  // token ids: a number or a list of numbers

  void Fail(const char* key, absl::string_view what);             // INVALID_ARGUMENT
  void FailUnsupported(const char* key, absl::string_view what);  // UNIMPLEMENTED

 private:
  const nlohmann::json& object_;
  const std::string origin_;
  absl::Status status_;
};

}  // namespace ridge::worker
