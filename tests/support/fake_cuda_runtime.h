// A CUDA runtime without a card: linked into a test in place of NVIDIA's, it runs no kernel, keeps account of
// memory and launches, and can fail. So the host's part of the CUDA backend runs where there is no card.
//
// Device pointers are numbers; what is copied from them is zero. Not thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ridge::fake_cuda {

struct Card {
  int major = 8;
  int minor = 6;
  int num_sms = 72;
  int shared_bytes_per_block = 99 << 10;  // static and dynamic
  int64_t memory_bytes = int64_t{4} << 30;
  int64_t graph_bytes = 1 << 20;     // that an instantiated graph takes
  int cooperative_blocks = 1 << 20;  // that a cooperative launch may have
  bool maps_tensors = false;         // as a driver for sm_90 does
};

// Forgets everything and has this card. Called before anything else of a test.
void Insert(const Card& card);

int64_t UsedBytes();
int64_t NumAllocations();  // of device and pinned memory, since Insert

// By the kernel's mangled name: the most dynamic shared memory that it was launched with, since Insert.
const std::map<std::string, int>& LaunchedSharedBytes();

// What was enqueued since Insert, in order; what is captured is not.
enum class Enqueued { kCopyToDevice, kCopyToHost, kLaunch, kEventRecord, kEventWait };
struct StreamCall {
  Enqueued what;
  cudaStream_t stream;
  cudaEvent_t event;  // of the last two
};
const std::vector<StreamCall>& StreamCalls();

enum class Seen {
  kAtLaunch,    // by the launch itself, as with CUDA_LAUNCH_BLOCKING=1
  kByNextCall,  // by whatever is called next
  kByWaiting,
};

// Kernel or graph number `launch` from now on (0: the next) fails with `error`, and so does everything after
// that.
void FailLaunch(int launch, cudaError_t error, Seen seen);

}  // namespace ridge::fake_cuda
