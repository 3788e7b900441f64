#include "bench/flags/shared_flags.h"

#include "absl/flags/flag.h"

ABSL_FLAG(
    std::string, model, "",
    "of a service: the model's name, by default whatever is served; of an engine in this process: GGUF file, "
    "Hugging Face directory or synthetic:NAME");
ABSL_FLAG(std::string, out, "", "folder for what is written; records that are there are gone on with");
ABSL_FLAG(std::string, target, "127.0.0.1:50050", "host:port of a router or a worker");
ABSL_FLAG(std::string, source, "bench/traces/prompt_source.txt", "text whose beginnings are the prompts");
ABSL_FLAG(std::string, expect_device, "",
          "fail unless the device's name has this in it, as words: \"NVIDIA A10\" is not in \"NVIDIA A10G\"");
ABSL_FLAG(std::string, commit, "", "of the sources; recorded");
