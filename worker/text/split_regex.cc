#include "worker/text/split_regex.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ridge::worker {
namespace {

// White_Space, as the inside of a class; PCRE2's \s has a character more.
constexpr char kSpace[] = "\\p{Z}\\t-\\r\\x{85}";

// What Unicode 15 and 16 added to the classes of Unicode 14, which PCRE2 10.42 knows.
struct Additions {
  absl::string_view name;
  absl::string_view ranges;
};
constexpr Additions kAdditions[] = {
    {"L",
     "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"
     "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}"
     "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}"
     "\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}"
     "\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}\\x{18CFF}"
     "\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}"
     "\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"},
    {"Lu", "\\x{1C89}\\x{A7CB}-\\x{A7CC}\\x{A7DA}\\x{A7DC}\\x{10D50}-\\x{10D65}"},
    {"Ll", "\\x{1C8A}\\x{A7CD}\\x{A7DB}\\x{10D70}-\\x{10D85}\\x{1DF25}-\\x{1DF2A}"},
    {"Lm", "\\x{10D4E}\\x{10D6F}\\x{16D40}-\\x{16D42}\\x{16D6B}-\\x{16D6C}\\x{1E030}-\\x{1E06D}\\x{1E4EB}"},
    {"Lo",
     "\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D4D}\\x{10D4F}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}"
     "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}"
     "\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}"
     "\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D43}-\\x{16D6A}\\x{18CFF}"
     "\\x{1B132}\\x{1B155}\\x{1E4D0}-\\x{1E4EA}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}"
     "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"},
    {"M",
     "\\x{897}\\x{CF3}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}"
     "\\x{113B8}-\\x{113C0}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113D0}\\x{113D2}"
     "\\x{113E1}-\\x{113E2}\\x{11F00}-\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}\\x{11F3E}-\\x{11F42}"
     "\\x{11F5A}\\x{13440}\\x{13447}-\\x{13455}\\x{1611E}-\\x{1612F}\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}"
     "\\x{1E5EE}-\\x{1E5EF}"},
    {"N",
     "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
     "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"
     "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"},
};

absl::string_view AdditionsTo(absl::string_view name) {
  for (const Additions& additions : kAdditions) {
    if (additions.name == name) return additions.ranges;
  }
  return "";
}

class Translator {
 public:
  explicit Translator(absl::string_view regex) : regex_(regex) {}

  absl::StatusOr<std::string> Run() {
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

  void Escape() {
    const char letter = position_ + 1 < regex_.size() ? regex_[position_ + 1] : '\0';
    if (letter == 's' || (letter == 'S' && !in_class_)) {
      position_ += 2;
      Set(kSpace, letter == 'S');
    } else if (letter == 'p' || letter == 'P') {
      Property(letter == 'P');
    } else if (absl::StrContains("hHKOyYgkRX", absl::string_view(&letter, 1))) {
      Unsupported(absl::StrCat("\\", absl::string_view(&letter, 1)));
    } else {
      Copy(2);
    }
  }

  // \p{Name}, or \p{^Name}, or \pL.
  void Property(bool negated) {
    absl::string_view rest = regex_.substr(position_ + 2);
    absl::string_view name = rest.substr(0, 1);
    size_t size = 3;
    if (name == "{") {
      const size_t close = rest.find('}');
      if (close == rest.npos) return Copy(2);  // PCRE2 says what is wrong
      name = rest.substr(1, close - 1);
      size = 2 + close + 1;
    }
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    const absl::string_view additions = AdditionsTo(name);
    if (additions.empty()) return Copy(size);
    if (negated && in_class_) return Unsupported(absl::StrCat("\\P{", name, "} in a class"));
    position_ += size;
    Set(absl::StrCat("\\p{", name, "}", additions), negated);
  }

  void InClass() {
    const absl::string_view rest = regex_.substr(position_);
    if (rest[0] == ']') in_class_ = false;
    if (rest[0] == '[') {
      // [:alpha:] means the same in both.
      const size_t end = rest.substr(0, 2) == "[:" ? rest.find(":]") : rest.npos;
      if (end == rest.npos) return Unsupported("a class in a class");
      return Copy(end + 2);
    }
    if (rest.substr(0, 2) == "&&") return Unsupported("an intersection of classes");
    Copy(1);
  }

  void OutsideClass() {
    const absl::string_view rest = regex_.substr(position_);
    if (rest[0] == '[') {
      in_class_ = true;
      // A bracket that comes first is a character.
      const bool negated = rest.substr(1, 1) == "^";
      return Copy((negated ? 2 : 1) + (rest.substr(negated ? 2 : 1, 1) == "]" ? 1 : 0));
    }
    if (rest.substr(0, 2) == "}+") return Unsupported("a possessive interval");
    // (?m) is what PCRE2 calls (?s).
    if (rest.substr(0, 2) == "(?") {
      const size_t end = rest.find_first_of(":)<=!>#", 2);
      const absl::string_view flags = rest.substr(2, end == rest.npos ? 0 : end - 2);
      if (flags.find_first_not_of("i") != flags.npos) {
        return Unsupported(absl::StrCat("(?", flags));
      }
    }
    Copy(1);
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
