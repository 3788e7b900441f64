#include "worker/text/json_reader.h"

#include <charconv>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/utf8.h"

namespace ridge::worker {
namespace {

constexpr int kMaxDepth = 100;
constexpr size_t kMaxFieldBytes = 120;  // of a message

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

JsonReader::JsonReader(absl::string_view text, absl::string_view origin) : text_(text), origin_(origin) {
  if (!IsValidUtf8(text)) Fail("not valid UTF-8");
}

void JsonReader::Fail(absl::string_view what) {
  if (ok()) status_ = absl::InvalidArgumentError(absl::StrCat(Where(), what));
}

void JsonReader::FailUnsupported(absl::string_view what) {
  if (ok()) status_ = absl::UnimplementedError(absl::StrCat(Where(), what));
}

std::string JsonReader::Where() const {
  if (field_.empty()) return absl::StrCat(origin_, ": ");
  // Keys come from the file.
  return absl::StrCat(origin_, ": ", absl::CHexEscape(field_.substr(0, kMaxFieldBytes)), ": ");
}

void JsonReader::SkipSpace() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++position_;
  }
}

char JsonReader::Next() {
  SkipSpace();
  return position_ < text_.size() ? text_[position_] : '\0';
}

JsonReader::Kind JsonReader::Peek() {
  if (!ok()) return Kind::kNull;
  const char c = Next();
  switch (c) {
    case '{':
      return Kind::kObject;
    case '[':
      return Kind::kArray;
    case '"':
      return Kind::kString;
    case 't':
    case 'f':
      return Kind::kBool;
    case 'n':
      return Kind::kNull;
    default:
      if (c != '-' && !IsDigit(c)) {
        Fail(position_ == text_.size() ? "ends in the middle" : absl::StrCat("no JSON at byte ", position_));
      }
      return ok() ? Kind::kNumber : Kind::kNull;
  }
}

void JsonReader::Literal(absl::string_view word) {
  if (text_.substr(position_, word.size()) != word) return Fail(absl::StrCat("no JSON at byte ", position_));
  position_ += word.size();
}

bool JsonReader::TakeNull() {
  if (Peek() != Kind::kNull || !ok()) return false;
  Literal("null");
  return ok();
}

bool JsonReader::Bool() {
  if (Peek() != Kind::kBool) {
    Fail("not true or false");
    return false;
  }
  const bool value = text_[position_] == 't';
  Literal(value ? "true" : "false");
  return value;
}

absl::string_view JsonReader::Number() {
  if (Peek() != Kind::kNumber) {
    Fail("not a number");
    return "";
  }
  const size_t begin = position_;
  const auto at = [&] { return position_ < text_.size() ? text_[position_] : '\0'; };
  const auto digits = [&] {
    if (!IsDigit(at())) Fail(absl::StrCat("no number at byte ", position_));
    while (IsDigit(at())) ++position_;
  };
  if (at() == '-') ++position_;
  if (at() == '0') {
    ++position_;
  } else {
    digits();
  }
  if (at() == '.') {
    ++position_;
    digits();
  }
  if (at() == 'e' || at() == 'E') {
    ++position_;
    if (at() == '+' || at() == '-') ++position_;
    digits();
  }
  return ok() ? text_.substr(begin, position_ - begin) : absl::string_view();
}

int64_t JsonReader::Int() {
  const absl::string_view text = Number();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ok() && (error != std::errc() || end != text.data() + text.size())) Fail("not an integer of 64 bits");
  return ok() ? value : 0;
}

std::string JsonReader::String() {
  std::string value;
  if (Peek() != Kind::kString) {
    Fail("not a string");
    return value;
  }
  ReadString(&value);
  if (!ok()) value.clear();
  return value;
}

void JsonReader::ReadString(std::string* value) {
  ++position_;
  while (ok()) {
    size_t end = position_;
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' &&
           static_cast<uint8_t>(text_[end]) >= 0x20) {
      ++end;
    }
    if (value != nullptr) value->append(text_.data() + position_, end - position_);
    position_ = end;
    if (end == text_.size()) return Fail("ends in the middle of a string");
    if (text_[end] == '"') {
      ++position_;
      return;
    }
    if (text_[end] != '\\') return Fail(absl::StrCat("a control character at byte ", end));
    ++position_;
    ReadEscape(value);
  }
}

void JsonReader::ReadEscape(std::string* value) {
  constexpr absl::string_view kEscapes = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
  const char c = position_ < text_.size() ? text_[position_] : '\0';
  const size_t simple = c == '\0' ? kEscapes.npos : kEscapes.find(c);
  if (simple != kEscapes.npos) {
    ++position_;
    if (value != nullptr) value->push_back(kValues[simple]);
    return;
  }
  if (c != 'u') return Fail(absl::StrCat("an unknown escape at byte ", position_));
  uint32_t code = ReadHex4();
  if (code >= 0xD800 && code < 0xDC00 && text_.substr(position_, 2) == "\\u") {
    ++position_;
    const uint32_t low = ReadHex4();
    code = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : 0xD800;
  }
  if (code >= 0xD800 && code < 0xE000) Fail(absl::StrCat("half a surrogate pair at byte ", position_));
  if (!ok() || value == nullptr) return;
  if (code < 0x80) {
    value->push_back(static_cast<char>(code));
    return;
  }
  const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const uint32_t lead = tail == 1 ? 0xC0 : tail == 2 ? 0xE0 : 0xF0;
  value->push_back(static_cast<char>(lead | code >> (6 * tail)));
  for (int i = tail - 1; i >= 0; --i) value->push_back(static_cast<char>(0x80 | (code >> (6 * i) & 0x3F)));
}

uint32_t JsonReader::ReadHex4() {
  ++position_;  // the u
  const absl::string_view digits = text_.substr(position_, 4);
  uint32_t code = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  if (digits.size() < 4 || error != std::errc() || end != digits.data() + 4) {
    Fail(absl::StrCat("no four hexadecimal digits at byte ", position_));
    return 0;
  }
  position_ += 4;
  return code;
}

absl::string_view JsonReader::Skip() {
  const Kind kind = Peek();
  const size_t begin = position_;
  switch (kind) {
    case Kind::kNull:
      TakeNull();
      break;
    case Kind::kBool:
      Bool();
      break;
    case Kind::kNumber:
      Number();
      break;
    case Kind::kString:
      ReadString(nullptr);
      break;
    case Kind::kArray:
      Array([this](size_t) { Skip(); });
      break;
    case Kind::kObject:
      Object([this](absl::string_view) { Skip(); });
      break;
  }
  return ok() ? text_.substr(begin, position_ - begin) : absl::string_view();
}

JsonReader::Place JsonReader::Later() {
  Peek();  // past white space
  Place place{position_, field_};
  Skip();
  return place;
}

bool JsonReader::Open(char bracket, absl::string_view what) {
  const Kind kind = Peek();
  if (ok() && kind != (bracket == '{' ? Kind::kObject : Kind::kArray)) Fail(absl::StrCat("not ", what));
  if (ok() && ++depth_ > kMaxDepth) Fail("nested too deep");
  if (!ok()) return false;
  ++position_;
  first_item_ = true;
  return true;
}

bool JsonReader::NextItem(char close) {
  if (!ok()) return false;
  const char c = Next();
  const bool first = first_item_;
  first_item_ = false;
  if (c == close) {
    ++position_;
    --depth_;
    return false;
  }
  if (first) return true;
  if (c != ',') {
    Fail(c == '\0' ? "ends in the middle" : absl::StrCat("no JSON at byte ", position_));
    return false;
  }
  ++position_;
  return true;
}

std::string JsonReader::MemberKey() {
  std::string key = String();
  if (ok() && Next() != ':') Fail(absl::StrCat("no JSON at byte ", position_));
  ++position_;
  return key;
}

void JsonReader::EnterMember(absl::string_view key) {
  absl::StrAppend(&field_, field_.empty() ? "" : ".", key);
}

void JsonReader::EnterElement(size_t index) {
  absl::StrAppend(&field_, "[", index, "]");
}

void JsonReader::Finish() {
  if (ok() && Next() != '\0') Fail(absl::StrCat("more than one value: byte ", position_));
  if (ok() && position_ < text_.size()) Fail(absl::StrCat("no JSON at byte ", position_));
}

std::string JsonQuote(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    constexpr absl::string_view kSpecial = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
    const size_t special = kSpecial.find(c);
    if (special != kSpecial.npos) {
      quoted += '\\';
      quoted += kLetters[special];
    } else if (static_cast<uint8_t>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<int>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace ridge::worker
