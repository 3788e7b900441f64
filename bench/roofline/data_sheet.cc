#include "bench/roofline/data_sheet.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ridge::bench {
namespace {

// Labels count 1 GB = 2^30 bytes of chips; error correction takes a sixteenth of GDDR6.
constexpr DataSheet kDataSheets[] = {
    {"a10", "NVIDIA A10", 22.06, 600, 125, 150, "NVIDIA A10 data sheet; memory as the driver reports it"},
    {"a10g", "NVIDIA A10G", 22.06, 600, 70, 150,
     "AWS G5 instances' A10G: the A10's memory, fewer tensor operations"},
    {"l4", "NVIDIA L4", 22.5, 300, 121, 72, "NVIDIA L4 data sheet"},
    {"t4", "NVIDIA T4", 15, 320, 65, 70, "NVIDIA T4 data sheet"},
    {"l40s", "NVIDIA L40S", 45, 864, 362, 350, "NVIDIA L40S data sheet"},
    {"a100-40gb", "NVIDIA A100-PCIE-40GB", 39.4, 1555, 312, 250, "NVIDIA A100 data sheet"},
    {"a100-80gb", "NVIDIA A100-SXM4-80GB", 79.2, 2039, 312, 400, "NVIDIA A100 data sheet"},
    {"h100", "NVIDIA H100 80GB HBM3", 79.1, 3350, 989, 700, "NVIDIA H100 SXM data sheet"},
    {"h200", "NVIDIA H200", 139.8, 4800, 989, 700, "NVIDIA H200 data sheet; memory as the driver reports it"},
};

}  // namespace

absl::Span<const DataSheet> DataSheets() {
  return kDataSheets;
}

absl::StatusOr<DataSheet> FindDataSheet(absl::string_view key) {
  for (const DataSheet& sheet : kDataSheets) {
    if (key == sheet.key) return sheet;
  }
  return absl::NotFoundError(absl::StrCat(
      "no card \"", key, "\"; there is ",
      absl::StrJoin(kDataSheets, ", ",
                    [](std::string* out, const DataSheet& sheet) { absl::StrAppend(out, sheet.key); })));
}

}  // namespace ridge::bench
