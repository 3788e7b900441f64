// A tokenizer.json, and a text through the tokenizer that it makes.
#include "common/check.h"
#include "tests/fuzz/fuzz_file.h"
#include "worker/text/hf_tokenizer.h"
#include "worker/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = "tokenizer.json";
  absl::StatusOr<ridge::worker::TokenizerSpec> spec =
      ridge::worker::TokenizerSpecFromJson({reinterpret_cast<const char*>(data), size}, path);
  ridge::CheckError(spec.status(), path);
  if (!spec.ok()) return 0;
  const auto tokenizer = ridge::worker::Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return 0;
  for (const bool parse_special : {false, true}) {
    const auto ids = (*tokenizer)
                         ->Encode("ab a12 \u00e9\n  <eos>x\x01",
                                  {.parse_special = parse_special, .add_special_tokens = true});
    if (!ids.ok()) continue;
    for (const ridge::worker::TokenId id : *ids) RIDGE_CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
    (*tokenizer)->Decode(*ids, true);
  }
  return 0;
}
