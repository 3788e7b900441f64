#include "common/http_port.h"

#include <civetweb.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/check.h"

namespace ridge {
namespace {

// The server gives each connection a thread from its first byte, or none, to its last. So that connections
// which say nothing, or half a request, keep no probe waiting, there are many threads, and a client has a
// short time to say what it wants (and to take more of the answer): 50 such connections cost a probe half a
// second.
constexpr char kThreads[] = "32";
constexpr char kRequestTimeoutMs[] = "500";

struct Answer {
  int code;
  const char* reason;
  std::string body;
};

class CivetHttpPort : public HttpPort {
 public:
  explicit CivetHttpPort(HttpPortOptions options) : options_(std::move(options)) {
    RIDGE_CHECK(options_.metrics != nullptr && options_.ready != nullptr && options_.status != nullptr);
  }
  ~CivetHttpPort() override {
    if (context_ != nullptr) Stop();
  }

  absl::Status Listen() {
    if (absl::StrContains(options_.host, ':')) {
      return absl::InvalidArgumentError(
          absl::StrCat("--metrics_port: the HTTP port takes no IPv6 host (", options_.host,
                       "): give --listen a name or an IPv4 address, or --metrics_port=-1"));
    }
    const std::string address = absl::StrCat(options_.host, ":", options_.port);
    const char* settings[] = {"listening_ports",    address.c_str(),   "num_threads", kThreads,
                              "request_timeout_ms", kRequestTimeoutMs, nullptr};
    mg_callbacks callbacks{};
    callbacks.log_message = [](const mg_connection*, const char*) {
      return 1;
    };  // errors are reported by Listen
    context_ = mg_start(&callbacks, this, settings);
    mg_server_port listening{};
    if (context_ == nullptr || mg_get_server_ports(context_, 1, &listening) != 1) {
      return absl::UnavailableError(absl::StrCat("--metrics_port: cannot listen on ", address,
                                                 " (taken, or not an address of this machine)"));
    }
    port_ = listening.port;
    mg_set_request_handler(context_, "**", &CivetHttpPort::Handle, this);
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  // The server sees that it is to stop when a client comes, or up to 2 s later: so clients come.
  void Stop() {
    std::atomic<bool> stopped{false};
    std::thread stopper([&] {
      mg_stop(context_);
      stopped = true;
    });
    while (!stopped) {
      char error[128];
      mg_connection* knock = mg_connect_client(options_.host.c_str(), port_, 0, error, sizeof(error));
      if (knock != nullptr) mg_close_connection(knock);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    stopper.join();
  }

  static int Handle(mg_connection* connection, void* self) {
    const mg_request_info* request = mg_get_request_info(connection);
    const absl::string_view method = request->request_method;
    Answer answer = method == "GET" || method == "HEAD"
                        ? static_cast<const CivetHttpPort*>(self)->Respond(request->local_uri)
                        : Answer{405, "Method Not Allowed", "only GET and HEAD\n"};
    mg_printf(connection,
              "HTTP/1.1 %d %s\r\n%sContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
              "Content-Length: %zu\r\nConnection: close\r\n\r\n",
              answer.code, answer.reason, answer.code == 405 ? "Allow: GET, HEAD\r\n" : "",
              answer.body.size());
    if (method != "HEAD") mg_write(connection, answer.body.data(), answer.body.size());
    return answer.code;
  }

  Answer Respond(absl::string_view path) const {
    if (path == "/metrics") return {200, "OK", options_.metrics->Text()};
    if (path == "/healthz") return {200, "OK", "ok\n"};
    if (path == "/readyz") {
      return options_.ready() ? Answer{200, "OK", "ready\n"}
                              : Answer{503, "Service Unavailable", "not ready\n"};
    }
    if (path == "/statusz") return {200, "OK", options_.status()};
    return {404, "Not Found", "paths: /metrics /healthz /readyz /statusz\n"};
  }

  const HttpPortOptions options_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpPort>> HttpPort::Start(HttpPortOptions options) {
  auto port = std::make_unique<CivetHttpPort>(std::move(options));
  absl::Status status = port->Listen();
  if (!status.ok()) return status;
  return port;
}

}  // namespace ridge
