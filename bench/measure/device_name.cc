#include "bench/measure/device_name.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace ridge::bench {
namespace {

bool IsInWord(absl::string_view text, size_t at) {
  return at < text.size() && absl::ascii_isalnum(static_cast<unsigned char>(text[at]));
}

}  // namespace

bool NamesDevice(absl::string_view device_name, absl::string_view expected) {
  if (expected.empty()) return true;
  for (size_t at = device_name.find(expected); at != absl::string_view::npos;
       at = device_name.find(expected, at + 1)) {
    const size_t end = at + expected.size();
    const bool begins = at == 0 || !IsInWord(device_name, at - 1) || !IsInWord(device_name, at);
    const bool ends = !IsInWord(device_name, end) || !IsInWord(device_name, end - 1);
    if (begins && ends) return true;
  }
  return false;
}

absl::Status CheckDevice(const std::string& expected, const std::string& device_name) {
  if (NamesDevice(device_name, expected)) return absl::OkStatus();
  return InvalidField("--expect_device",
                      absl::StrCat("this is \"", device_name, "\", not \"", expected, "\""));
}

}  // namespace ridge::bench
