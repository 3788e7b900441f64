// Counts what operator new hands out in this executable.
#pragma once

#include <cstdint>

namespace ridge {

// Forgets the peak so far; from here on PeakAllocation is the most that was held beyond what is held now.
void RestartPeakAllocation();
int64_t PeakAllocation();

}  // namespace ridge
