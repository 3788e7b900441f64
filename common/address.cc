#include "common/address.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace ridge {
namespace {

constexpr int kMaxPort = 65535;

bool IsName(absl::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  });
}

bool IsIpv6(absl::string_view host) {
  return absl::StrContains(host, ':') && std::all_of(host.begin(), host.end(), [](unsigned char c) {
           // With a zone: fe80::1%eth0.
           return absl::ascii_isalnum(c) || c == ':' || c == '.' || c == '%';
         });
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view flag, absl::string_view text, int min_port) {
  const absl::Status malformed =
      InvalidField(flag, absl::StrCat("\"", text, "\" is not host:port, as 127.0.0.1:50051 or [::1]:50051"));
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return malformed;
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port_text = text.substr(colon + 1);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
    if (!IsIpv6(host)) return malformed;
  } else if (!IsName(host)) {
    return malformed;
  }
  int port = 0;
  if (port_text.empty() || !std::all_of(port_text.begin(), port_text.end(), absl::ascii_isdigit)) {
    return malformed;
  }
  if (!absl::SimpleAtoi(port_text, &port) || port < min_port || port > kMaxPort) {
    return InvalidField(
        flag, absl::StrCat("\"", text, "\": port ", port_text, " is not in ", min_port, " to ", kMaxPort));
  }
  return HostPort{std::string(host), port};
}

std::string ToString(const HostPort& address) {
  const bool ipv6 = absl::StrContains(address.host, ':');
  return absl::StrCat(ipv6 ? "[" : "", address.host, ipv6 ? "]" : "", ":", address.port);
}

}  // namespace ridge
