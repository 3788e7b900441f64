// Tokenizers of real models, from tests/golden: as their files, and made.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "worker/text/tokenizer.h"

namespace ridge::worker {

// A file of tests/golden.
std::string GoldenPath(const std::string& name);
nlohmann::ordered_json ReadGolden(const std::string& name);
std::string ReadGoldenText(const std::string& name);

// Qwen2.5's tokenizer.json, byte for byte, and SmolLM2's as its GGUF metadata give it.
const std::string& Qwen25Json();
const std::string& SmolLm2Json();

// From tokenizer.json and tokenizer_config.json.
const Tokenizer& Qwen25();
// From GGUF metadata.
const Tokenizer& SmolLm2();
// From tokenizer.json.
const Tokenizer& SmolLm2FromJson();

}  // namespace ridge::worker
