#include <string>
#include <vector>

#include "absl/flags/flag.h"

ABSL_FLAG(std::string, card, "a10", "roofline: the card whose data sheet counts (an unknown one lists them)");
ABSL_FLAG(std::vector<std::string>, records, {}, "roofline: runs.csv.gz files to show beside the prediction");
