// A config.json, and the same bytes as generation_config.json.
#include "tests/fuzz/fuzz_file.h"
#include "worker/model/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<ridge::worker::ModelConfig> config =
      ridge::worker::ConfigFromHfJson(text, "config.json");
  ridge::CheckError(config.status(), "config.json");
  ridge::worker::ModelConfig generation = config.ok() ? *config : ridge::worker::ModelConfig();
  ridge::CheckError(ridge::worker::AddGenerationConfig(text, "generation_config.json", generation),
                    "generation_config.json");
  return 0;
}
