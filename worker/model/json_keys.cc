#include "worker/model/json_keys.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/model/mapped_file.h"

namespace ridge::worker {

using nlohmann::json;

absl::StatusOr<json> ParseJsonObject(absl::string_view text, const std::string& path) {
  // The index of the largest published models has 100 KiB. The parsed form takes up to a hundred times the
  // text.
  constexpr size_t kMaxBytes = 512 << 10;
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", text.size(), " bytes: more than ", kMaxBytes));
  }
  json value = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  return value;
}

absl::StatusOr<json> ReadJsonObject(const std::string& path) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  return ParseJsonObject(absl::string_view(file->bytes().data(), file->bytes().size()), path);
}

const json* JsonKeys::Find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

int32_t JsonKeys::Int(const char* key) {
  if (!Has(key)) Fail(key, "missing");
  return IntOr(key, 0);
}

int32_t JsonKeys::IntOr(const char* key, int32_t fallback) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number_integer() || *value < 0 || *value > INT32_MAX) {
    Fail(key, "not an integer in [0, 2^31)");
    return fallback;
  }
  return value->get<int32_t>();
}

float JsonKeys::FloatOr(const char* key, float fallback) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    Fail(key, "not a number");
    return fallback;
  }
  return static_cast<float>(value->get<double>());
}

double JsonKeys::Positive(const char* key) {
  const json* value = Find(key);
  const double number = value != nullptr && value->is_number() ? value->get<double>() : 0.0;
  if (std::isfinite(number) && number > 0.0) return number;
  Fail(key, value == nullptr ? "missing" : "not a positive number");
  return 1.0;
}

bool JsonKeys::BoolOr(const char* key, bool fallback) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Fail(key, "not true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string JsonKeys::StringOr(const char* key, const char* fallback) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    Fail(key, "not a string");
    return fallback;
  }
  return value->get<std::string>();
}

std::vector<int32_t> JsonKeys::Ids(const char* key) {
  const json* value = Find(key);
  if (value == nullptr) return {};
  constexpr size_t kMaxIds = 1024;
  std::vector<int32_t> ids;
  if (value->is_array() && value->size() > kMaxIds) {
    Fail(key, "too many ids");
    return ids;
  }
  for (const json& id : value->is_array() ? *value : json::array({*value})) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      Fail(key, "not a token id or a list of them");
      return {};
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

void JsonKeys::Fail(const char* key, absl::string_view what) {
  status_.Update(absl::InvalidArgumentError(absl::StrCat(origin_, ": ", key, ": ", what)));
}

void JsonKeys::FailUnsupported(const char* key, absl::string_view what) {
  status_.Update(absl::UnimplementedError(absl::StrCat(origin_, ": ", key, ": ", what)));
}

}  // namespace ridge::worker
