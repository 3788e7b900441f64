#include "worker/text/python_json.h"

#include <charconv>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "worker/text/json_reader.h"

namespace ridge::worker {
namespace {

// Python's repr of a float: the shortest digits that read back as the same number, as 123.0, or with an
// exponent of two digits at least where it is below -4 or above 15.
std::string FloatText(double value) {
  char buffer[40];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof(buffer), std::fabs(value), std::chars_format::scientific);
  const absl::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const absl::string_view power = text.substr(text[e + 1] == '+' ? e + 2 : e + 1);
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  std::string digits(text.substr(0, 1));
  if (e > 2) absl::StrAppend(&digits, text.substr(2, e - 2));

  const int count = static_cast<int>(digits.size());
  std::string out = std::signbit(value) ? "-" : "";
  if (exponent < -4 || exponent > 15) {
    absl::StrAppend(&out, digits.substr(0, 1), count > 1 ? "." : "", digits.substr(1), "e",
                    exponent < 0 ? "-" : "+", std::abs(exponent) < 10 ? "0" : "", std::abs(exponent));
  } else if (exponent < 0) {
    absl::StrAppend(&out, "0.", std::string(static_cast<size_t>(-exponent - 1), '0'), digits);
  } else if (count <= exponent + 1) {
    absl::StrAppend(&out, digits, std::string(static_cast<size_t>(exponent + 1 - count), '0'), ".0");
  } else {
    absl::StrAppend(&out, digits.substr(0, exponent + 1), ".", digits.substr(exponent + 1));
  }
  return out;
}

class Writer {
 public:
  Writer(JsonReader* reader, int indent) : reader_(*reader), indent_(indent) {}

  std::string Take() { return std::move(out_); }

  void Value(int level) {
    switch (reader_.Peek()) {
      case JsonReader::Kind::kObject:
        return Object(level);
      case JsonReader::Kind::kArray:
        return Array(level);
      case JsonReader::Kind::kString:
        absl::StrAppend(&out_, JsonQuote(reader_.String()));
        return;
      case JsonReader::Kind::kNumber:
        return Number();
      default:
        absl::StrAppend(&out_, reader_.Skip());
    }
  }

 private:
  void Object(int level) {
    absl::flat_hash_set<std::string> keys;
    out_ += '{';
    reader_.Object([&](absl::string_view key) {
      if (!keys.emplace(key).second) return reader_.Fail("given twice");
      BeginItem(keys.size() == 1, level);
      absl::StrAppend(&out_, JsonQuote(key), ": ");
      Value(level + 1);
    });
    if (!keys.empty()) EndItems(level);
    out_ += '}';
  }

  void Array(int level) {
    bool empty = true;
    out_ += '[';
    reader_.Array([&](size_t index) {
      BeginItem(index == 0, level);
      empty = false;
      Value(level + 1);
    });
    if (!empty) EndItems(level);
    out_ += ']';
  }

  void Number() {
    const absl::string_view text = reader_.Number();
    if (text.find_first_of(".eE") == text.npos) {
      absl::StrAppend(&out_, text == "-0" ? "0" : text);
      return;
    }
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    // Too small a number reads as zero in Python; too large a one has no JSON form.
    if (error == std::errc::result_out_of_range) {
      value = std::strtod(std::string(text).c_str(), nullptr);
      if (!std::isfinite(value)) return reader_.Fail("a number out of range");
    }
    absl::StrAppend(&out_, FloatText(value));
  }

  void BeginItem(bool first, int level) {
    if (indent_ == 0) {
      if (!first) absl::StrAppend(&out_, ", ");
      return;
    }
    absl::StrAppend(&out_, first ? "\n" : ",\n",
                    std::string(static_cast<size_t>(indent_ * (level + 1)), ' '));
  }
  void EndItems(int level) {
    if (indent_ > 0) absl::StrAppend(&out_, "\n", std::string(static_cast<size_t>(indent_ * level), ' '));
  }

  JsonReader& reader_;
  const int indent_;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> PythonJsonObject(absl::string_view json, absl::string_view field, int indent) {
  JsonReader reader(json, field);
  if (reader.Peek() != JsonReader::Kind::kObject) reader.Fail("not a JSON object");
  Writer writer(&reader, indent);
  writer.Value(0);
  reader.Finish();
  if (!reader.ok()) return reader.status();
  return writer.Take();
}

}  // namespace ridge::worker
