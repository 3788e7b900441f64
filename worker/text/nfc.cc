#include "worker/text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace ridge::worker {
namespace {

struct Block {
  uint32_t first, last;
};

// Characters that are what they decompose to, start a cluster, and combine with none before them. Unicode
// never changes this for characters that it has.
constexpr Block kPlain[] = {{0x80, 0x2FF},     {0x400, 0x482},   {0x48A, 0x590},   {0x2010, 0x2027},
                            {0x2030, 0x205E},  {0x20A0, 0x20C0}, {0x2190, 0x21FF}, {0x2500, 0x27BF},
                            {0x3001, 0x3029},  {0x3031, 0x3098}, {0x309B, 0x30FF}, {0x3400, 0x9FFF},
                            {0xAC00, 0xD7A3},  {0xFE00, 0xFE0F}, {0xFF01, 0xFFEE}, {0x1F300, 0x1FAF8},
                            {0x20000, 0x2A6DF}};

// Characters newer than Unicode 9 that combine or decompose, some with their whole block. In order.
constexpr Block kNewer[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1AFF},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x105C0, 0x105FF}, {0x10D24, 0x10D27}, {0x10D40, 0x10D8F}, {0x10EAB, 0x10EAC},
    {0x10EC0, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x11380, 0x113FF}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11900, 0x1195F}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16100, 0x1613F}, {0x16D40, 0x16D7F}, {0x16FF0, 0x16FF1},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1E5D0, 0x1E5FF}, {0x1E6C0, 0x1E6FF}};

// The character that begins here, and past it. Requires valid UTF-8.
uint32_t TakeCharacter(const char** at) {
  const auto lead = static_cast<uint8_t>(*(*at)++);
  if (lead < 0x80) return lead;
  const int tail = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  uint32_t code = lead & (0x3F >> tail);
  for (int i = 0; i < tail; ++i) code = code << 6 | (static_cast<uint8_t>(*(*at)++) & 0x3F);
  return code;
}

bool IsNewer(uint32_t code) {
  const auto* block = std::partition_point(std::begin(kNewer), std::end(kNewer),
                                           [&](const Block& b) { return b.last < code; });
  return block != std::end(kNewer) && block->first <= code;
}

// As the installed library's version of Unicode has it.
absl::Status AppendNormalized(absl::string_view text, std::string* out) {
  utf8proc_uint8_t* data = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
      &data, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (size < 0)
    return absl::InvalidArgumentError(absl::StrCat("cannot be normalised: ", utf8proc_errmsg(size)));
  out->append(reinterpret_cast<const char*>(data), static_cast<size_t>(size));
  std::free(data);
  return absl::OkStatus();
}

}  // namespace

bool IsPlainlyNfc(absl::string_view text) {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    const uint32_t code = TakeCharacter(&at);
    bool plain = code < 0x80;
    for (const Block& block : kPlain) plain |= code >= block.first && code <= block.last;
    if (!plain) return false;
  }
  return true;
}

absl::StatusOr<std::string> NormalizeNfc(absl::string_view text) {
  std::string out;
  const char* const end = text.data() + text.size();
  const char* begin = text.data();  // of what was not normalised yet
  const auto append_until = [&](const char* limit) {
    if (begin == limit) return absl::OkStatus();
    return AppendNormalized(absl::string_view(begin, static_cast<size_t>(limit - begin)), &out);
  };
  for (const char* at = begin; at < end;) {
    const char* const character = at;
    if (!IsNewer(TakeCharacter(&at))) continue;
    if (absl::Status status = append_until(character); !status.ok()) return status;
    out.append(character, static_cast<size_t>(at - character));
    begin = at;
  }
  if (absl::Status status = append_until(end); !status.ok()) return status;
  return out;
}

}  // namespace ridge::worker
