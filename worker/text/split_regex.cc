#include "worker/text/split_regex.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/text/unicode_classes.h"

namespace ridge::worker {
namespace {

// White_Space, as the inside of a class; PCRE2's \s has a character more.
constexpr char kSpace[] = "\\p{Z}\\t-\\r\\x{85}";
// What is not White_Space: PCRE2's \S and that character.
constexpr char kNoSpace[] = "\\S\\x{180E}";

// Letters that without regard to case match one character too (U+00DF, U+FB00...), in Oniguruma only.
constexpr absl::string_view kPairsOfOne[] = {"ss", "st", "ff", "fi", "fl"};

class Translator {
 public:
  explicit Translator(absl::string_view regex) : regex_(regex) {}

  absl::StatusOr<std::string> Run() {
    CheckCaseFolding();
    while (position_ < regex_.size() && status_.ok()) {
      if (regex_[position_] == '\\') {
        Escape();
      } else if (in_class_) {
        InClass();
      } else {
        OutsideClass();
      }
    }
    if (!status_.ok()) return status_;
    return std::move(out_);
  }

 private:
  void Unsupported(absl::string_view what) {
    status_ = absl::UnimplementedError(absl::StrCat(what, " is not supported"));
  }

  void Copy(size_t count) {
    absl::StrAppend(&out_, regex_.substr(position_, count));
    position_ += count;
  }

  // A set of characters, given as the inside of a class.
  void Set(absl::string_view inside, bool negated) {
    absl::StrAppend(&out_, in_class_ ? "" : negated ? "[^" : "[", inside, in_class_ ? "" : "]");
  }

  void CheckCaseFolding() {
    if (!absl::StrContains(regex_, "(?i")) return;
    const std::string lower = absl::AsciiStrToLower(regex_);
    for (const absl::string_view pair : kPairsOfOne) {
      if (absl::StrContains(lower, pair)) Unsupported(absl::StrCat("\"", pair, "\" beside (?i"));
    }
    for (const char c : regex_) {
      if (!absl::ascii_isascii(static_cast<unsigned char>(c)))
        Unsupported("a character beyond ASCII beside (?i");
    }
  }

  void Escape() {
    const absl::string_view letter = regex_.substr(position_ + 1, 1);
    if (letter == "s" || (letter == "S" && !in_class_)) {
      position_ += 2;
      Set(kSpace, letter == "S");
    } else if (letter == "S") {
      position_ += 2;
      Set(kNoSpace, false);
    } else if (letter == "d" || letter == "D") {
      position_ += 2;
      Property("Nd", letter == "D", letter);
    } else if (letter == "p" || letter == "P") {
      NamedProperty(letter == "P");
    } else if (!letter.empty() && absl::StrContains("wWbBhHvVKNOQEGyYgkRXC", letter)) {
      // Words are other characters for each, and with them their bounds; the rest only looks the same.
      Unsupported(absl::StrCat("\\", letter));
    } else {
      Copy(2);
    }
  }

  // \p{Name}, or \p{^Name}, or \pL.
  void NamedProperty(bool negated) {
    const absl::string_view rest = regex_.substr(position_ + 2);
    absl::string_view name = rest.substr(0, 1);
    size_t size = 3;
    if (name == "{") {
      const size_t close = rest.find('}');
      if (close == rest.npos) return Copy(2);  // PCRE2 says what is wrong
      name = rest.substr(1, close - 1);
      size = 2 + close + 1;
    }
    const absl::string_view written = regex_.substr(position_ + 1, size - 1);
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    position_ += size;
    Property(name, negated, written);
  }

  void Property(absl::string_view name, bool negated, absl::string_view written) {
    const absl::string_view inside = UnicodeClass(name);
    if (inside.empty()) return Unsupported(absl::StrCat("\\", written));
    if (negated && in_class_) return Unsupported(absl::StrCat("\\", written, " in a class"));
    Set(inside, negated);
  }

  void InClass() {
    const absl::string_view rest = regex_.substr(position_);
    if (rest[0] == ']') in_class_ = false;
    if (rest[0] == '[') return BracketInClass(rest);
    if (absl::StartsWith(rest, "&&")) return Unsupported("an intersection of classes");
    Copy(1);
  }

  void BracketInClass(absl::string_view rest) {
    constexpr absl::string_view kDigit = "[:digit:]", kWhite = "[:space:]";
    if (absl::StartsWith(rest, kDigit)) {
      position_ += kDigit.size();
      return Property("Nd", false, kDigit);
    }
    if (absl::StartsWith(rest, kWhite)) {
      position_ += kWhite.size();
      return Set(kSpace, false);
    }
    const size_t end = rest.substr(0, 2) == "[:" ? rest.find(":]") : rest.npos;
    Unsupported(end == rest.npos ? absl::string_view("a class in a class") : rest.substr(0, end + 2));
  }

  void OutsideClass() {
    const absl::string_view rest = regex_.substr(position_);
    if (rest[0] == '[') {
      in_class_ = true;
      // A bracket that comes first is a character.
      const bool negated = rest.substr(1, 1) == "^";
      return Copy((negated ? 2 : 1) + (rest.substr(negated ? 2 : 1, 1) == "]" ? 1 : 0));
    }
    if (rest[0] == '{') return Interval(rest);
    if (absl::StartsWith(rest, "(*")) return Unsupported("(*");
    // (?m) is what PCRE2 calls (?s).
    if (absl::StartsWith(rest, "(?")) {
      const size_t end = rest.find_first_of(":)<=!>#", 2);
      const absl::string_view flags = rest.substr(2, end == rest.npos ? 0 : end - 2);
      if (flags.find_first_not_of('i') != flags.npos) return Unsupported(absl::StrCat("(?", flags));
    }
    Copy(1);
  }

  void Interval(absl::string_view rest) {
    const size_t close = rest.find('}');
    if (close == rest.npos) return Copy(1);
    const absl::string_view inside = rest.substr(1, close - 1), behind = rest.substr(close + 1, 1);
    if (absl::StartsWith(inside, ",")) return Unsupported("an interval without a lower bound");
    if (behind == "+") return Unsupported("a possessive interval");
    if (behind == "?" && !absl::StrContains(inside, ",")) return Unsupported("a lazy count");
    Copy(close + 1);
  }

  const absl::string_view regex_;
  size_t position_ = 0;
  bool in_class_ = false;
  std::string out_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::string> SplitRegexForPcre2(absl::string_view regex) {
  return Translator(regex).Run();
}

}  // namespace ridge::worker
