// A tokenizer_config.json beside a small tokenizer.
#include "tests/fuzz/fuzz_file.h"
#include "worker/text/hf_tokenizer.h"
#include "worker/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = "tokenizer_config.json";
  ridge::worker::TokenizerSpec spec;
  spec.tokens = {{"a"}, {"b"}, {"ab"}, {"<eos>", ridge::worker::TokenKind::kSpecial}};
  spec.merges = {{0, 1, 2}};
  const absl::Status status =
      ridge::worker::AddTokenizerConfig({reinterpret_cast<const char*>(data), size}, path, &spec);
  ridge::CheckError(status, path);
  if (!status.ok()) return 0;
  const auto tokenizer = ridge::worker::Tokenizer::Create(std::move(spec));
  if (tokenizer.ok())
    (*tokenizer)->Encode("ab<eos>x", {.parse_special = true, .add_special_tokens = true}).IgnoreError();
  return 0;
}
