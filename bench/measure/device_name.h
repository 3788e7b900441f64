// Whether what is measured is the device that was meant: cards have been exchanged silently before.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ridge::bench {

// Whether a device's name has `expected` in it as words: "NVIDIA A10" is in "cuda: NVIDIA A10 (sm_86, ...)",
// not in "cuda: NVIDIA A10G (sm_86, ...)". Nothing is in every name.
bool NamesDevice(absl::string_view device_name, absl::string_view expected);

// INVALID_ARGUMENT "--expect_device: ..." with both names where it has not.
absl::Status CheckDevice(const std::string& expected, const std::string& device_name);

}  // namespace ridge::bench
