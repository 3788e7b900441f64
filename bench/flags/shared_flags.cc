#include "bench/flags/shared_flags.h"

#include "absl/flags/flag.h"

ABSL_FLAG(
    std::string, model, "",
    "of a service: the model's name, by default whatever is served; of an engine in this process: GGUF file, "
    "Hugging Face directory or synthetic:NAME");
ABSL_FLAG(std::string, out, "", "folder for what is written; records that are there are gone on with");
