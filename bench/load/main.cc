// load-bench: how fast a model is loaded, beside how fast its files can be read at all, in the same run; from
// the page cache, or from the disk with --cold.
//
// Two probes: the files in order into one small buffer, as `cat` reads them; and, from the page cache, all
// threads reading the same bytes into memory that is new to the process, which is the least that any loader
// does.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "common/clock.h"
#include "common/flags.h"
#include "common/logging.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cpu/page_memory.h"
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

// GB/s of all threads into fresh memory. The files are in the page cache.
absl::StatusOr<double> ReadIntoMemory(const std::vector<std::string>& files, int threads) {
  constexpr int64_t kPiece = 1 << 20;
  int64_t total = 0;
  double seconds = 0;
  for (const std::string& file : files) {
    const int64_t size = static_cast<int64_t>(fs::file_size(file));
    absl::StatusOr<ridge::worker::PageMemory> memory = ridge::worker::PageMemory::Allocate(size);
    if (!memory.ok()) return memory.status();
    const int fd = open(file.c_str(), O_RDONLY);
    std::atomic<int64_t> next{0}, done{0};
    const int64_t begin = ridge::RealClock()->NowNs();
    const auto read_pieces = [&] {
      for (int64_t at; (at = next.fetch_add(kPiece)) < size;) {
        const size_t count = static_cast<size_t>(std::min(kPiece, size - at));
        done += pread(fd, memory->as<char>() + at, count, at);
      }
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(read_pieces);
    read_pieces();
    for (std::thread& thread : others) thread.join();
    seconds += Seconds(begin);
    total += done;
    close(fd);
  }
  return static_cast<double>(total) * 1e-9 / seconds;
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

  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1u);
  const int threads =
      absl::GetFlag(FLAGS_threads) > 0 ? absl::GetFlag(FLAGS_threads) : static_cast<int>(cores);
  double to_memory = 0;
  if (cold) {
    DropFromPageCache(files);
  } else {
    const absl::StatusOr<double> rate = ReadIntoMemory(files, threads);
    if (!rate.ok()) return rate.status();
    to_memory = *rate;
  }
  RestartPeak();
  begin = ridge::RealClock()->NowNs();
  const auto source = ridge::worker::OpenModel(model);
  if (!source.ok()) return source.status();
  const auto backend = ridge::worker::CpuBackend::Create(**source, {.threads = threads});
  if (!backend.ok()) return backend.status();
  const double seconds = Seconds(begin);
  const double load = static_cast<double>(bytes) * 1e-9 / seconds;
  const int64_t weights = (*backend)->Info().weight_bytes;
  const int64_t peak = PeakResidentBytes();
  std::printf("%s %.2f GB, %d threads: load %.2f GB/s (%.2f s); read in order %.2f GB/s, share %.2f",
              cold ? "disk" : "page cache", static_cast<double>(bytes) * 1e-9, threads, load, seconds, probe,
              load / probe);
  if (!cold) std::printf("; read into new memory %.2f GB/s, share %.2f", to_memory, load / to_memory);
  std::printf("; weights %.0f MB, peak RSS %.0f MB (%+.1f %%)\n", static_cast<double>(weights) * 1e-6,
              static_cast<double>(peak) * 1e-6,
              (static_cast<double>(peak) / static_cast<double>(weights) - 1) * 100);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  ridge::ParseFlags("Measures how fast a model is loaded.", argc, argv);
  ridge::InitLogging("load-bench", "info");
  const std::string model = absl::GetFlag(FLAGS_model);
  if (!fs::exists(model)) {
    std::fprintf(stderr, "load-bench: --model: %s: no such file or directory\n", model.c_str());
    return 1;
  }
  const std::vector<std::string> files = WeightFiles(model);
  if (!absl::GetFlag(FLAGS_cold)) ReadAll(files);  // into the page cache
  for (int i = 0; i < absl::GetFlag(FLAGS_repeat); ++i) {
    if (const absl::Status status = Measure(model, files, absl::GetFlag(FLAGS_cold)); !status.ok()) {
      std::fprintf(stderr, "load-bench: %s\n", status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}
