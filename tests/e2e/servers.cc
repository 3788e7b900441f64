#include "tests/e2e/servers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

namespace ridge::testing {
namespace {

constexpr char kReadyLine[] = "ready: gRPC on (\\S+:\\d+), metrics on (\\S+:\\d+)\n";
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

absl::StatusOr<Server> StartServer(absl::string_view program, std::vector<std::string> flags) {
  std::vector<std::string> command = {BinaryPath(program), "--listen", "127.0.0.1:0", "--metrics-port", "0"};
  command.insert(command.end(), flags.begin(), flags.end());
  Server server;
  absl::StatusOr<std::unique_ptr<Process>> process = Process::Start(command);
  if (!process.ok()) return process.status();
  server.process = *std::move(process);
  absl::StatusOr<std::vector<std::string>> ports = server.process->WaitForStderr(kReadyLine, kPatience);
  if (!ports.ok()) return ports.status();
  server.grpc = (*ports)[0];
  server.metrics = (*ports)[1];
  return server;
}

absl::Status SocketError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Sends one request of HTTP/1.0 and reads until the server closes.
absl::StatusOr<std::string> Exchange(int fd, int port, const std::string& request) {
  const timeval timeout = {absl::ToInt64Seconds(kPatience), 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return SocketError("connect");
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
    return SocketError("send");
  }
  std::string reply;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = recv(fd, buffer, sizeof(buffer), 0)) > 0) reply.append(buffer, static_cast<size_t>(got));
  if (got < 0) return SocketError("recv");
  return reply;
}

}  // namespace

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

std::string BinaryPath(absl::string_view program) {
  return absl::StrCat(RIDGE_BINARY_DIR "/bin/", program);
}

std::string TestDataPath(absl::string_view relative) {
  return absl::StrCat(RIDGE_TEST_DATA_DIR "/", relative);
}

std::string TestModelPath() {
  const char* path = std::getenv("RIDGE_TEST_MODEL");
  return path != nullptr && std::filesystem::exists(path) ? path : "";
}

bool ToolsAreRequired() {
  const char* required = std::getenv("RIDGE_REQUIRE_TOOLS");
  return required != nullptr && absl::string_view(required) == "1";
}

absl::StatusOr<Server> StartWorker(std::vector<std::string> flags) {
  return StartServer("ridge-worker", std::move(flags));
}

absl::StatusOr<Server> StartRouter(const std::vector<std::string>& workers, std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--workers", absl::StrJoin(workers, ",")});
  absl::StatusOr<Server> router = StartServer("ridge-router", std::move(flags));
  if (!router.ok()) return router;
  const bool all_up = Eventually([&] {
    const absl::StatusOr<MetricsPage> page = MetricsPage::Scrape(router->metrics);
    return page.ok() && page->Sum("ridge_router_worker_up") == static_cast<double>(workers.size());
  });
  if (!all_up) {
    return absl::DeadlineExceededError(absl::StrCat("not all workers are up:\n", router->process->Stderr()));
  }
  return router;
}

TemporaryDirectory::TemporaryDirectory() {
  path_ = (std::filesystem::temp_directory_path() / "ridge-test-XXXXXX").string();
  if (mkdtemp(path_.data()) == nullptr) std::abort();
}

TemporaryDirectory::~TemporaryDirectory() {
  std::filesystem::remove_all(path_);
}

absl::StatusOr<std::string> WriteLongContextModel(const TemporaryDirectory& directory) {
  const std::filesystem::path source = TestDataPath("tiny-llama");
  const std::filesystem::path target = std::filesystem::path(directory.path()) / "tiny-llama-long";
  std::filesystem::create_directory(target);
  std::filesystem::copy_file(source / "model.safetensors", target / "model.safetensors");
  std::stringstream config;
  config << std::ifstream(source / "config.json").rdbuf();
  std::string text = config.str();
  if (absl::StrReplaceAll({{"\"max_position_embeddings\": 512", "\"max_position_embeddings\": 32768"}},
                          &text) != 1) {
    return absl::InternalError("config.json of tiny-llama has changed");
  }
  std::ofstream(target / "config.json") << text;
  return target.string();
}

absl::StatusOr<HttpReply> HttpGet(const std::string& address, absl::string_view path) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat("no port in ", address));
  }
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return SocketError("socket");
  absl::StatusOr<std::string> text = Exchange(fd, port, absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n"));
  close(fd);
  if (!text.ok()) return text.status();
  // "HTTP/1.1 200 OK", headers, an empty line, the body.
  const size_t end_of_headers = text->find("\r\n\r\n");
  HttpReply reply;
  const std::vector<absl::string_view> words = absl::StrSplit(*text, absl::MaxSplits(' ', 2));
  if (end_of_headers == std::string::npos || words.size() < 2 || !absl::SimpleAtoi(words[1], &reply.code)) {
    return absl::DataLossError(absl::StrCat("not an HTTP reply: ", *text));
  }
  reply.body = text->substr(end_of_headers + 4);
  return reply;
}

absl::StatusOr<MetricsPage> MetricsPage::Scrape(const std::string& address) {
  absl::StatusOr<HttpReply> reply = HttpGet(address, "/metrics");
  if (!reply.ok()) return reply.status();
  if (reply->code != 200) return absl::UnavailableError(absl::StrCat("/metrics: ", reply->code));
  MetricsPage page;
  for (absl::string_view line : absl::StrSplit(reply->body, '\n', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&line, "# TYPE ")) {
      const std::pair<std::string, std::string> type = absl::StrSplit(line, ' ');
      page.types_.insert(type);
      continue;
    }
    if (absl::StartsWith(line, "#")) continue;
    const size_t space = line.rfind(' ');
    double value = 0;
    if (space == line.npos || !absl::SimpleAtod(line.substr(space + 1), &value)) {
      return absl::DataLossError(absl::StrCat("not a sample: ", line));
    }
    page.series_[std::string(line.substr(0, space))] = value;
  }
  return page;
}

double MetricsPage::Value(absl::string_view series) const {
  const auto found = series_.find(series);
  return found == series_.end() ? kNone : found->second;
}

double MetricsPage::Sum(absl::string_view name) const {
  double sum = kNone;
  for (const auto& [series, value] : series_) {
    const absl::string_view stem = absl::string_view(series).substr(0, series.find('{'));
    if (stem == name) sum = sum == sum ? sum + value : value;
  }
  return sum;
}

}  // namespace ridge::testing
