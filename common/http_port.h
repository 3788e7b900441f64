// The HTTP port for people and scrapers: /metrics, /healthz, /readyz and /statusz on one small server.
//
// Threads: the callbacks are called from the server's threads. The destructor waits for requests in flight.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics.h"

namespace ridge {

struct HttpPortOptions {
  std::string host = "127.0.0.1";  // a name or an IPv4 address: the server is built without IPv6
  int port = 0;                    // 0: any free one
  // All three are required, and outlive the port.
  const MetricsRegistry* metrics = nullptr;
  std::function<bool()> ready;          // /readyz: 200 or 503
  std::function<std::string()> status;  // /statusz: text for people
};

class HttpPort {
 public:
  // An error names the flag --metrics_port.
  static absl::StatusOr<std::unique_ptr<HttpPort>> Start(HttpPortOptions options);
  virtual ~HttpPort() = default;

  virtual int port() const = 0;
};

}  // namespace ridge
