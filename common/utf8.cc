#include "common/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace ridge {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// The beginning of a text: how many bytes belong to its first part, and what that part is.
struct Part {
  enum Kind { kCharacter, kCutOff, kIllFormed } kind;
  size_t size;
};

// Requires a text that is not empty. The table of well-formed sequences is Unicode's (table 3-7): only the
// second byte's range depends on the first.
Part FirstPart(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Part::kCharacter, 1};
  size_t size;
  uint8_t low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    size = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    size = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    size = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Part::kIllFormed, 1};
  }
  for (size_t i = 1; i < size; ++i) {
    if (i == text.size()) return {Part::kCutOff, i};
    if (byte(i) < low || byte(i) > high) return {Part::kIllFormed, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Part::kCharacter, size};
}

// Some bytes at the beginning that are ASCII, a word at a time: most text is.
size_t AsciiPrefix(absl::string_view text) {
  size_t size = 0;
  for (uint64_t word; size + sizeof(word) <= text.size(); size += sizeof(word)) {
    std::memcpy(&word, text.data() + size, sizeof(word));
    if ((word & 0x8080808080808080) != 0) break;
  }
  return size;
}

}  // namespace

bool IsValidUtf8(absl::string_view text) {
  while (!text.empty()) {
    text.remove_prefix(AsciiPrefix(text));
    if (text.empty()) break;
    const Part part = FirstPart(text);
    if (part.kind != Part::kCharacter) return false;
    text.remove_prefix(part.size);
  }
  return true;
}

std::string ReplaceInvalidUtf8(absl::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const Part part = FirstPart(text);
    if (part.kind == Part::kCharacter) {
      valid.append(text.data(), part.size);
    } else {
      valid.append(kReplacement);
    }
    text.remove_prefix(part.size);
  }
  return valid;
}

size_t IncompleteUtf8Suffix(absl::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(3, text.size()); ++size) {
    const absl::string_view suffix = text.substr(text.size() - size);
    if ((static_cast<uint8_t>(suffix[0]) & 0xC0) == 0x80) continue;  // inside a character: look further back
    const Part part = FirstPart(suffix);
    return part.kind == Part::kCutOff ? size : 0;
  }
  return 0;
}

}  // namespace ridge
