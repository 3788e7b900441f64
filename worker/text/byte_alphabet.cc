#include "worker/text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace ridge::worker {
namespace {

constexpr int kNumStandIns = 256 + 68;  // 68 bytes are not printable and moved behind U+0100

bool IsPrintable(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

// By code point; -1 where it stands for no byte.
std::array<int16_t, kNumStandIns> MakeTable() {
  std::array<int16_t, kNumStandIns> table;
  table.fill(-1);
  int next = 256;
  for (int byte = 0; byte < 256; ++byte)
    table[IsPrintable(byte) ? byte : next++] = static_cast<int16_t>(byte);
  return table;
}

}  // namespace

absl::StatusOr<std::string> BytesFromPrintable(absl::string_view printable) {
  static const std::array<int16_t, kNumStandIns> kTable = MakeTable();
  std::string bytes;
  bytes.reserve(printable.size());
  for (size_t i = 0; i < printable.size(); ++i) {
    // Stand-ins lie below U+0800: one or two bytes.
    int code = static_cast<uint8_t>(printable[i]);
    if (code >= 0xC0 && code < 0xE0 && i + 1 < printable.size()) {
      code = (code & 0x1F) << 6 | (static_cast<uint8_t>(printable[++i]) & 0x3F);
    } else if (code >= 0x80) {
      code = kNumStandIns;
    }
    if (code >= kNumStandIns || kTable[code] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("\"", printable, "\" is not byte-level"));
    }
    bytes.push_back(static_cast<char>(kTable[code]));
  }
  return bytes;
}

}  // namespace ridge::worker
