// Addresses as flags give them. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridge {

struct HostPort {
  std::string host;  // a name or an address; IPv6 without its brackets
  int port = 0;
};

// "127.0.0.1:50051", "worker-2.internal:50051", "[::1]:50051"; the port is in [min_port, 65535]. Anything
// else, spaces and URLs among it, is INVALID_ARGUMENT and names the flag ("--listen").
absl::StatusOr<HostPort> ParseHostPort(absl::string_view flag, absl::string_view text, int min_port);

// The way it is written: IPv6 in brackets.
std::string ToString(const HostPort& address);

}  // namespace ridge
