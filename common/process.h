// What a process of ours asks of the system: termination by signal, file descriptors.
#pragma once

#include <cstdint>

namespace ridge {

// At the top of main, before any other thread starts: from here on SIGTERM and SIGINT end the process at
// once, whatever its threads do, and SIGPIPE is ignored.
void InstallTermination();

// Once, when there is something to stop in order: from here on the first signal is kept for
// WaitForTermination, and a second one ends the process at once, with a warning in the log.
void HoldTermination();

// Blocks until SIGTERM or SIGINT arrives; returns its number. After HoldTermination.
int WaitForTermination();

// Raises the soft limit of open files to the hard one, or 1,048,576 where that is less; returns the limit.
int64_t RaiseDescriptorLimit();

}  // namespace ridge
