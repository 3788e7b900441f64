// A process that cannot start says why in one line, and ends with exit code 1.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/servers.h"

namespace ridge::testing {
namespace {

using ::testing::HasSubstr;

// A port that somebody else listens on.
class TakenPort {
 public:
  TakenPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~TakenPort() { close(fd_); }

  std::string port() const { return absl::StrCat(port_); }

 private:
  const int fd_;
  int port_ = 0;
};

// What was said beside the log: "2026-01-31T12:00:00.000Z info ridge-worker: ...". A warning is no complaint:
// the process goes on after it.
std::vector<std::string> Complaints(const std::string& text) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    if (words.size() < 2 || (words[1] != "info" && words[1] != "warning")) lines.emplace_back(line);
  }
  return lines;
}

void ExpectFailure(const std::string& program, const std::vector<std::string>& flags,
                   const std::string& named) {
  SCOPED_TRACE(absl::StrCat(program, " ", absl::StrJoin(flags, " ")));
  std::vector<std::string> command = {BinaryPath(program)};
  command.insert(command.end(), flags.begin(), flags.end());
  const absl::StatusOr<std::unique_ptr<Process>> process = Process::Start(command);
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_EQ((*process)->WaitForExit(kPatience), 1);
  const std::vector<std::string> lines = Complaints((*process)->Stderr());
  ASSERT_EQ(lines.size(), 1u) << (*process)->Stderr();
  EXPECT_THAT(lines[0], HasSubstr(named));
}

// Flags of a worker that would start.
std::vector<std::string> WorkerWith(const std::vector<std::string>& flags) {
  std::vector<std::string> all = {
      "--model", TestDataPath("tiny-llama"), "--listen", "127.0.0.1:0", "--metrics-port",
      "0",       "--kv-cache-bytes",         "16MiB"};
  all.insert(all.end(), flags.begin(), flags.end());
  return all;
}

std::vector<std::string> RouterWith(const std::vector<std::string>& flags) {
  std::vector<std::string> all = {"--workers",   "127.0.0.1:1",    "--listen",
                                  "127.0.0.1:0", "--metrics-port", "0"};
  all.insert(all.end(), flags.begin(), flags.end());
  return all;
}

void ExpectWorkerFailure(const std::vector<std::string>& flags, const std::string& named) {
  ExpectFailure("ridge-worker", WorkerWith(flags), named);
}

void ExpectRouterFailure(const std::vector<std::string>& flags, const std::string& named) {
  ExpectFailure("ridge-router", RouterWith(flags), named);
}

// A copy of a test file that lacks its last bytes.
std::string TruncatedCopy(const std::string& source, const std::string& target, double kept) {
  std::filesystem::copy_file(source, target);
  std::filesystem::resize_file(target, static_cast<uintmax_t>(std::filesystem::file_size(source) * kept));
  return target;
}

TEST(StartupTest, AGrpcPortThatIsTaken) {
  const TakenPort taken;
  ExpectWorkerFailure({"--listen", "127.0.0.1:" + taken.port()},
                      "--listen: cannot listen on 127.0.0.1:" + taken.port());
  ExpectRouterFailure({"--listen", "127.0.0.1:" + taken.port()},
                      "--listen: cannot listen on 127.0.0.1:" + taken.port());
}

TEST(StartupTest, AMetricsPortThatIsTaken) {
  const TakenPort taken;
  ExpectWorkerFailure({"--metrics-port", taken.port()}, "--metrics_port");
  ExpectRouterFailure({"--metrics-port", taken.port()}, "--metrics_port");
}

TEST(StartupTest, AnAddressThatCannotBe) {
  ExpectWorkerFailure({"--listen", "127.0.0.1:80000"}, "port 80000 is not in 0 to 65535");
  ExpectRouterFailure({"--listen", "127.0.0.1:80000"}, "port 80000 is not in 0 to 65535");
  ExpectRouterFailure({"--workers", "127.0.0.1:1, 127.0.0.1:2"}, "--workers: \" 127.0.0.1:2\"");
  ExpectRouterFailure({"--workers", "http://127.0.0.1:1"}, "--workers: \"http://127.0.0.1:1\"");
}

TEST(StartupTest, ASignalWhileTheModelLoadsEndsTheProcess) {
  const auto process = Process::Start({BinaryPath("ridge-worker"), "--model", "synthetic:smollm2-135m",
                                       "--listen", "127.0.0.1:0", "--metrics-port", "0"});
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_TRUE((*process)->WaitForStderr("config: ", kPatience).ok());
  (*process)->Signal(SIGTERM);
  EXPECT_EQ((*process)->WaitForExit(kPatience), 128 + SIGTERM);
  EXPECT_EQ((*process)->Stderr().find("ready: "), std::string::npos) << (*process)->Stderr();
}

TEST(StartupTest, AModelThatIsMissing) {
  const TemporaryDirectory directory;
  for (const char* name : {"none.gguf", "none.safetensors", "none"}) {
    ExpectWorkerFailure({"--model", directory.path() + "/" + name}, directory.path() + "/" + name);
  }
  ExpectWorkerFailure({"--model", directory.path()}, directory.path());  // an empty folder
  ExpectWorkerFailure({"--model", "synthetic:none"}, "synthetic:none");
  ExpectWorkerFailure({"--model", ""}, "--model: required");
}

TEST(StartupTest, ATruncatedSafetensorsFile) {
  for (const double kept : {0.0, 0.0001, 0.01, 0.5, 0.999}) {
    const TemporaryDirectory directory;
    std::filesystem::copy_file(TestDataPath("tiny-llama/config.json"), directory.path() + "/config.json");
    TruncatedCopy(TestDataPath("tiny-llama/model.safetensors"), directory.path() + "/model.safetensors",
                  kept);
    ExpectWorkerFailure({"--model", directory.path()}, directory.path() + "/model.safetensors");
  }
}

TEST(StartupTest, ATruncatedGgufFile) {
  const std::pair<double, const char*> cuts[] = {{0.0, "the file is empty"},
                                                 {0.00001, "not a GGUF file"},
                                                 {0.001, "truncated"},
                                                 {0.5, "truncated"},
                                                 {0.999, "truncated"}};
  for (const auto& [kept, error] : cuts) {
    const TemporaryDirectory directory;
    const std::string path =
        TruncatedCopy(TestDataPath("gguf/tiny-llama3.gguf"), directory.path() + "/model.gguf", kept);
    ExpectWorkerFailure({"--model", path}, path);
    ExpectWorkerFailure({"--model", path}, error);
  }
}

TEST(StartupTest, AGgufFileWithoutWeights) {
  const std::string path = TestDataPath("tokenizer-smollm2/vocabulary.gguf");
  ExpectWorkerFailure({"--model", path}, path);
}

TEST(StartupTest, AFileThatIsNoModel) {
  ExpectWorkerFailure({"--model", TestDataPath("tiny-llama/golden.json")}, "golden.json");
}

TEST(StartupTest, AnUnknownFlag) {
  ExpectWorkerFailure({"--unheard-of", "1"}, "unheard_of");
  ExpectRouterFailure({"--unheard-of", "1"}, "unheard_of");
  ExpectWorkerFailure({"stray"}, "stray");
  ExpectRouterFailure({"stray"}, "stray");
}

TEST(StartupTest, ABadFlagValueOfTheWorker) {
  const std::vector<std::vector<std::string>> kBad = {
      {"--threads", "many"},       {"--threads", "-1"},          {"--kv_cache_bytes", "1XB"},
      {"--kv_cache_bytes", "1"},   {"--max_batch", "0"},         {"--step_tokens", "0"},
      {"--chunk_tokens", "-5"},    {"--max_context", "1"},       {"--metrics_port", "70000"},
      {"--listen", "nowhere"},     {"--listen", "127.0.0.1:x"},  {"--device", "abacus"},
      {"--device", "cuda"},        {"--engine", "steam"},        {"--default_sampling", "best"},
      {"--log_level", "loud"},     {"--drain_timeout", "-1s"},   {"--drain_timeout", "soon"},
      {"--chat_template", "none"}, {"--max_message_bytes", "1"},
  };
  for (const std::vector<std::string>& flags : kBad) {
    // Abseil's parser says the name without dashes.
    ExpectWorkerFailure(flags, flags[0].substr(2));
  }
}

TEST(StartupTest, ABadFlagValueOfTheRouter) {
  const std::vector<std::vector<std::string>> kBad = {
      {"--workers", ""},         {"--workers", "nowhere"},     {"--workers", "127.0.0.1:1,127.0.0.1:1"},
      {"--listen", "nowhere"},   {"--metrics_port", "-2"},     {"--max_message_bytes", "1"},
      {"--log_level", "loud"},   {"--drain_timeout", "-1s"},   {"--connect_timeout", "0"},
      {"--report_timeout", "0"}, {"--report_timeout", "soon"},
  };
  for (const std::vector<std::string>& flags : kBad) ExpectRouterFailure(flags, flags[0].substr(2));
}

}  // namespace
}  // namespace ridge::testing
