// What the makers' data sheets say of cards: the roofs under which every engine works.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ridge::bench {

struct DataSheet {
  const char* key;     // on the command line
  const char* name;    // as the driver calls the card
  double visible_gib;  // memory that a program can have; where not known, that of the label less a sixteenth
  double bandwidth_gb_s;  // 10^9 bytes a second
  double fp16_tflops;     // dense, tensor cores, accumulating in fp32
  double power_w;
  const char* source;
};

// All that are known.
absl::Span<const DataSheet> DataSheets();

// NOT_FOUND lists the keys.
absl::StatusOr<DataSheet> FindDataSheet(absl::string_view key);

}  // namespace ridge::bench
