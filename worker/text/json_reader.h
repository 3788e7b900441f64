// JSON, read front to back without a tree: the caller asks for what it expects and skips the rest, so that a
// hostile file costs no memory beyond what the caller keeps.
//
// The first error stays: afterwards every read gives an empty value and every loop ends, so that callers
// check status() once. Errors are INVALID_ARGUMENT (FailUnsupported: UNIMPLEMENTED) and name origin and
// field: "tokenizer.json: model.merges[3]: not a string". Nesting is bounded. Ownership: views the text,
// which outlives the reader. One thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ridge::worker {

class JsonReader {
 public:
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

  // `origin` (a file, or the field of a request) begins every message.
  JsonReader(absl::string_view text, absl::string_view origin);

  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  // Of the value that comes next; kNull after an error.
  Kind Peek();
  // True and past it where null comes next.
  bool TakeNull();

  std::string String();
  bool Bool();
  int64_t Int();
  // A number as it is written.
  absl::string_view Number();
  // Past a value of any kind; its text.
  absl::string_view Skip();

  // Calls read(key) or read(index) in front of each value, which `read` takes or skips.
  template <typename Read>
  void Object(const Read& read) {
    if (!Open('{', "an object")) return;
    const size_t parent = field_.size();
    while (NextMember()) {
      const std::string key = MemberKey();
      if (!ok()) return;
      EnterMember(key);
      read(absl::string_view(key));
      if (!ok()) return;
      field_.resize(parent);
    }
  }
  template <typename Read>
  void Array(const Read& read) {
    if (!Open('[', "a list")) return;
    const size_t parent = field_.size();
    for (size_t index = 0; NextElement(); ++index) {
      EnterElement(index);
      read(index);
      if (!ok()) return;
      field_.resize(parent);
    }
  }

  // Past a value, to read it another time.
  struct Place {
    size_t position;
    std::string field;
  };
  Place Later();
  // `read` takes the value at a place that Later gave; the reader then goes on where it was.
  template <typename Read>
  void Resume(const Place& place, const Read& read) {
    if (!ok()) return;
    Place here{position_, field_};
    position_ = place.position;
    field_ = place.field;
    read();
    if (!ok()) return;
    position_ = here.position;
    field_ = here.field;
  }

  // Nothing but white space may be left.
  void Finish();

  void Fail(absl::string_view what);
  void FailUnsupported(absl::string_view what);

 private:
  void SkipSpace();
  char Next();  // past white space; 0 at the end
  bool Open(char bracket, absl::string_view what);
  bool NextMember() { return NextItem('}'); }
  bool NextElement() { return NextItem(']'); }
  bool NextItem(char close);
  std::string MemberKey();
  void EnterMember(absl::string_view key);
  void EnterElement(size_t index);
  void Literal(absl::string_view word);
  // Past the string that begins here; appends its value where `value` is given.
  void ReadString(std::string* value);
  void ReadEscape(std::string* value);
  uint32_t ReadHex4();
  std::string Where() const;

  const absl::string_view text_;
  const std::string origin_;
  absl::Status status_;
  size_t position_ = 0;
  int depth_ = 0;
  bool first_item_ = false;  // the innermost object or list was just opened
  std::string field_;        // "model.merges[3]"
};

// `text` as a JSON string, quotes included, the way Python's json.dumps(ensure_ascii=False) writes it.
std::string JsonQuote(absl::string_view text);

}  // namespace ridge::worker
