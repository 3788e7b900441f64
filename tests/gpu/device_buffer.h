// Device memory for tests: a typed array that copies from and to the host, and the check of CUDA calls.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#define EXPECT_CUDA_OK(call) EXPECT_EQ(cudaGetErrorString(call), cudaGetErrorString(cudaSuccess)) << #call
#define ASSERT_CUDA_OK(call) ASSERT_EQ(cudaGetErrorString(call), cudaGetErrorString(cudaSuccess)) << #call

namespace ridge::gpu_test {

template <typename T>
class DeviceBuffer {
 public:
  // Filled with 0xFF bytes (NaN as fp16 and fp32), so that what a kernel leaves out is seen.
  explicit DeviceBuffer(size_t size) : size_(size) {
    EXPECT_CUDA_OK(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T) + 1));
    EXPECT_CUDA_OK(cudaMemset(data_, 0xFF, size * sizeof(T)));
  }
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(host.size()) { Upload(host); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(data_); }

  T* data() const { return data_; }
  size_t size() const { return size_; }

  void Upload(const std::vector<T>& host) {
    ASSERT_EQ(host.size(), size_);
    EXPECT_CUDA_OK(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  // Waits for everything before it, and fails the test where that failed.
  std::vector<T> Download() const {
    std::vector<T> host(size_);
    EXPECT_CUDA_OK(cudaDeviceSynchronize());
    EXPECT_CUDA_OK(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

}  // namespace ridge::gpu_test
