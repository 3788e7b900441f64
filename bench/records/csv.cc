#include "bench/records/csv.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace ridge::bench {

std::string CsvField(absl::string_view value) {
  if (value.find_first_of(",\"\r\n") == absl::string_view::npos) return std::string(value);
  return absl::StrCat("\"", absl::StrReplaceAll(value, {{"\"", "\"\""}}), "\"");
}

std::string CsvLine(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& field : fields) {
    if (&field != &fields.front()) line += ',';
    line += CsvField(field);
  }
  line += '\n';
  return line;
}

std::vector<std::string> TakeCsvRecord(absl::string_view* text) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  size_t at = 0;
  for (; at < text->size(); ++at) {
    const char c = (*text)[at];
    if (c == '"') {
      const bool doubled = quoted && at + 1 < text->size() && (*text)[at + 1] == '"';
      if (doubled)
        fields.back() += (*text)[++at];
      else
        quoted = !quoted;
    } else if (quoted) {
      fields.back() += c;
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '\n') {
      ++at;
      break;
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  text->remove_prefix(at);
  return fields;
}

}  // namespace ridge::bench
