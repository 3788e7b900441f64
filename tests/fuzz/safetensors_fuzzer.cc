// A safetensors file: the header, and that its tensors lie in the file.
#include "common/check.h"
#include "tests/fuzz/fuzz_file.h"
#include "worker/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = ridge::FuzzFile(data, size);
  const auto file = ridge::worker::SafetensorsFile::Open(path);
  ridge::CheckError(file.status(), path);
  if (!file.ok()) return 0;
  size_t bytes = 0;
  char sum = 0;
  for (const auto& [name, tensor] : (*file)->tensors()) {
    bytes += tensor.data.size();
    for (const char c : tensor.data) sum = static_cast<char>(sum ^ c);
  }
  RIDGE_CHECK(bytes < size);
  volatile char read = sum;  // so that every byte was
  (void)read;
  return 0;
}
