// Real workers and routers on free ports of loopback, and what they serve over HTTP.
//
// Ownership: a Server's process dies with it. Threads: start servers from the test's main thread; HttpGet and
// MetricsPage may be used from any.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/support/process.h"

namespace ridge::testing {

// Long enough for a loaded machine; nothing waits this long when all is well.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// Whether `condition` came true within kPatience.
bool Eventually(const std::function<bool()>& condition);

std::string BinaryPath(absl::string_view program);     // "ridge-worker"
std::string TestDataPath(absl::string_view relative);  // in tests/golden

// The model of RIDGE_TEST_MODEL; empty where it is unset or names no file.
std::string TestModelPath();

// RIDGE_REQUIRE_TOOLS=1: a test without its model or program fails, rather than being skipped.
bool ToolsAreRequired();

struct Server {
  std::unique_ptr<Process> process;
  std::string grpc;     // host:port
  std::string metrics;  // host:port
};

// A ready worker; `flags` are beside --listen and --metrics-port.
absl::StatusOr<Server> StartWorker(std::vector<std::string> flags);

// A ready router that has heard from every one of its workers.
absl::StatusOr<Server> StartRouter(const std::vector<std::string>& workers,
                                   std::vector<std::string> flags = {});

// A folder of its own, which goes with its contents.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// tests/golden/tiny-llama with a context that is long enough to do things while a stream is open. The folder
// is written into `directory`.
absl::StatusOr<std::string> WriteLongContextModel(const TemporaryDirectory& directory);

struct HttpReply {
  int code = 0;
  std::string body;
};

absl::StatusOr<HttpReply> HttpGet(const std::string& address, absl::string_view path);

// One scrape of /metrics.
class MetricsPage {
 public:
  static absl::StatusOr<MetricsPage> Scrape(const std::string& address);

  // Of one series as the page prints it: name, or name{label="value"}. Not a number where it is absent.
  double Value(absl::string_view series) const;
  // Over all label values. Not a number where there is no series of this name.
  double Sum(absl::string_view name) const;
  // "counter", "gauge" or "histogram" by name.
  const std::map<std::string, std::string>& types() const { return types_; }

 private:
  std::map<std::string, std::string> types_;
  std::map<std::string, double, std::less<>> series_;
};

}  // namespace ridge::testing
