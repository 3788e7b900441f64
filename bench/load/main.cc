// ridge-load: how fast a model is loaded, beside how fast its files can be read at all.
//
// Reads the files once in order with read(), as `cat` does (the probe), then loads them as a worker does, in
// the same run: from the page cache, or from the disk with --cold.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "common/clock.h"
#include "common/flags.h"
#include "common/logging.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/model/open_model.h"

ABSL_FLAG(std::string, model, "", "a GGUF file or a Hugging Face directory");
ABSL_FLAG(int, threads, 0, "threads that load; 0: one a core");
ABSL_FLAG(bool, cold, false, "drop the files from the page cache before each reading");
ABSL_FLAG(int, repeat, 1, "probes and loads, one after the other");

namespace {

namespace fs = std::filesystem;

double Seconds(int64_t begin_ns) {
  return static_cast<double>(ridge::RealClock()->NowNs() - begin_ns) * 1e-9;
}

std::vector<std::string> WeightFiles(const std::string& model) {
  if (!fs::is_directory(model)) return {model};
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(model)) {
    if (absl::EndsWith(entry.path().string(), ".safetensors")) files.push_back(entry.path());
  }
  return files;
}

void DropFromPageCache(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    const int fd = open(file.c_str(), O_RDONLY);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
  }
}

int64_t ReadAll(const std::vector<std::string>& files) {
  std::vector<char> buffer(1 << 20);
  int64_t total = 0;
  for (const std::string& file : files) {
    const int fd = open(file.c_str(), O_RDONLY);
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (ssize_t count; (count = read(fd, buffer.data(), buffer.size())) > 0;) total += count;
    close(fd);
  }
  return total;
}

// Since the last restart, in bytes; mapped files count.
int64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

void RestartPeak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

absl::Status Measure(const std::string& model, const std::vector<std::string>& files, bool cold) {
  if (cold) DropFromPageCache(files);
  int64_t begin = ridge::RealClock()->NowNs();
  const int64_t bytes = ReadAll(files);
  const double probe = static_cast<double>(bytes) * 1e-9 / Seconds(begin);

  if (cold) DropFromPageCache(files);
  RestartPeak();
  begin = ridge::RealClock()->NowNs();
  const auto source = ridge::worker::OpenModel(model);
  if (!source.ok()) return source.status();
  const auto backend = ridge::worker::CpuBackend::Create(**source, {.threads = absl::GetFlag(FLAGS_threads)});
  if (!backend.ok()) return backend.status();
  const double seconds = Seconds(begin);
  const double load = static_cast<double>(bytes) * 1e-9 / seconds;
  const int64_t weights = (*backend)->Info().weight_bytes;
  const int64_t peak = PeakResidentBytes();
  std::printf(
      "%s %.2f GB: probe %.2f GB/s, load %.2f GB/s (%.2f s), share %.2f; weights %.0f MB, peak RSS %.0f MB "
      "(%+.1f %%)\n",
      cold ? "disk" : "page cache", static_cast<double>(bytes) * 1e-9, probe, load, seconds, load / probe,
      static_cast<double>(weights) * 1e-6, static_cast<double>(peak) * 1e-6,
      (static_cast<double>(peak) / static_cast<double>(weights) - 1) * 100);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  ridge::ParseFlags("Measures how fast a model is loaded.", argc, argv);
  ridge::InitLogging("ridge-load", "info");
  const std::string model = absl::GetFlag(FLAGS_model);
  if (!fs::exists(model)) {
    std::fprintf(stderr, "ridge-load: --model: %s: no such file or directory\n", model.c_str());
    return 1;
  }
  const std::vector<std::string> files = WeightFiles(model);
  if (!absl::GetFlag(FLAGS_cold)) ReadAll(files);  // into the page cache
  for (int i = 0; i < absl::GetFlag(FLAGS_repeat); ++i) {
    if (const absl::Status status = Measure(model, files, absl::GetFlag(FLAGS_cold)); !status.ok()) {
      std::fprintf(stderr, "ridge-load: %s\n", status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}
