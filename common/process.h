// Termination by signal.
#pragma once

namespace ridge {

// At the top of main, before any thread starts: SIGTERM and SIGINT wait for WaitForTermination, SIGPIPE is
// ignored.
void BlockTerminationSignals();

// Blocks until SIGTERM or SIGINT arrives; returns its number. From then on a second one ends the process at
// once.
int WaitForTermination();

}  // namespace ridge
