// Tokenizer files that are cut off or altered: an error that names the file, or a tokenizer that works; in
// time, and without more memory than the file's size and 64 MiB.
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/model/file_builders.h"
#include "tests/unit/worker/text/real_tokenizers.h"
#include "worker/text/gguf_tokenizer.h"
#include "worker/text/hf_tokenizer.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RIDGE_COUNTS_MEMORY 0  // the sanitizer has its own operator new
#else
#define RIDGE_COUNTS_MEMORY 1
#endif

namespace {

// What operator new gave out and has not got back, and the most of it at once.
std::atomic<int64_t> allocated{0};
std::atomic<int64_t> most_allocated{0};

}  // namespace

#if RIDGE_COUNTS_MEMORY
// The size is kept in front of the memory.
void* operator new(size_t size) {
  auto* memory = static_cast<size_t*>(std::malloc(size + 16));
  if (memory == nullptr) throw std::bad_alloc();
  *memory = size;
  const int64_t now = allocated += static_cast<int64_t>(size);
  if (now > most_allocated) most_allocated = now;
  return reinterpret_cast<char*>(memory) + 16;
}
void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  void* begin = static_cast<char*>(memory) - 16;
  allocated -= static_cast<int64_t>(*static_cast<size_t*>(begin));
  std::free(begin);
}
void operator delete(void* memory, size_t /*size*/) noexcept {
  operator delete(memory);
}
#endif

namespace ridge::worker {
namespace {

using ::testing::StartsWith;

constexpr int kMutations = 10000;
constexpr int64_t kExtraBytes = 64 << 20;
constexpr double kMostSeconds = 2;  // of processor time, a file; milliseconds are usual

// A small file with every part that the reader knows.
constexpr char kSmallJson[] = R"({"version": "1.0", "truncation": null,
 "added_tokens": [{"id": 12, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
  {"id": 13, "content": "<tool>", "normalized": true, "special": false}],
 "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
  {"type": "Split", "pattern": {"Regex": "'s|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false},
  {"type": "Split", "pattern": {"String": "--"}, "behavior": "MergedWithNext", "invert": false},
  {"type": "Digits", "individual_digits": true},
  {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}]},
 "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
  "single": [{"SpecialToken": {"id": "<eos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
  "special_tokens": {"<eos>": {"id": "<eos>", "ids": [12], "tokens": ["<eos>"]}}}]},
 "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
  "vocab": {"a": 0, "b": 1, "1": 2, "2": 3, "\u0120": 4, "ab": 5, "12": 6, "\u0120a": 7, "\u00c3": 8, "\u00a9": 9, "\u00c3\u00a9": 10, "e": 11},
  "merges": ["a b", ["1", "2"], "\u0120 a", "\u00c3 \u00a9"]}})";

constexpr char kSmallConfig[] = R"({"add_bos_token": false, "add_eos_token": null, "bos_token": null,
 "eos_token": {"content": "<eos>", "lstrip": false}, "added_tokens_decoder": {"12": {"content": "<eos>"}},
 "chat_template": [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": "x"}], "model_max_length": 1e30})";

// Where the next one of these characters is; the end where there is none.
size_t FindFrom(const std::string& text, size_t from, const char* characters) {
  return std::min(text.find_first_of(characters, from), text.size());
}

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  std::string Mutate(std::string text) {
    for (int i = 1 + static_cast<int>(random_() % 3); i > 0; --i) Step(text);
    return text;
  }

 private:
  size_t Below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  void Step(std::string& text) {
    static const std::vector<std::string> kInserts = {"[",
                                                      "{",
                                                      "}",
                                                      "]",
                                                      "\"",
                                                      "\\",
                                                      "\\u",
                                                      "\\ud800",
                                                      "null",
                                                      "-1",
                                                      "0",
                                                      "1e9",
                                                      "2147483647",
                                                      "99999999999999999999",
                                                      ",",
                                                      ":",
                                                      "true",
                                                      "\xFF",
                                                      "\xC3",
                                                      std::string(1, '\0'),
                                                      std::string(2000, '['),
                                                      std::string(300, '('),
                                                      "\"a\": 1048576, ",
                                                      "\"b\": 524287, "};
    static const std::vector<std::string> kStrings = {"",
                                                      " ",
                                                      "a",
                                                      "(a+)+$",
                                                      "(?:a|a)*b",
                                                      "(x+x+)+y",
                                                      "\\\\p{L}{1,1000}{1,1000}",
                                                      "((((((((((a*)*)*)*)*)*)*)*)*)*b",
                                                      "(?=(a+))\\\\1",
                                                      ".*.*.*.*.*=",
                                                      "[^",
                                                      "\\\\",
                                                      "a**",
                                                      "(?R)",
                                                      "(?1)",
                                                      "(a|(?R))*",
                                                      "\\\\C",
                                                      "x*",
                                                      "$",
                                                      "^",
                                                      "Unigram",
                                                      "NFKC",
                                                      "ByteLevel",
                                                      "Split",
                                                      "Sequence",
                                                      "Removed",
                                                      "\xC4\xA0"};
    const size_t at = Below(text.size()), size = 1 + Below(20);
    switch (random_() % 7) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(random_());
        return;
      case 1:
        text.erase(at, size);
        return;
      case 2:
        text.insert(Below(text.size()), text.substr(at, size * 10));
        return;
      case 3:
        text.insert(at, kInserts[Below(kInserts.size())]);
        return;
      case 4: {  // another number
        const size_t begin = FindFrom(text, at, "0123456789");
        text.replace(begin, std::min(text.find_first_not_of("0123456789", begin), text.size()) - begin,
                     std::to_string(random_() >> Below(32)));
        return;
      }
      case 5: {  // another string
        const size_t begin = FindFrom(text, at, "\"");
        const size_t end = FindFrom(text, begin + 1, "\"");
        if (end < text.size()) text.replace(begin + 1, end - begin - 1, kStrings[Below(kStrings.size())]);
        return;
      }
      default: {  // a bit
        if (!text.empty()) text[at] = static_cast<char>(text[at] ^ 1 << Below(8));
      }
    }
  }

  std::mt19937 random_;
};

// Holds one load to the bounds.
class Bounds {
 public:
  explicit Bounds(size_t file_bytes) : file_bytes_(file_bytes), begin_(std::clock()), before_(allocated) {
    most_allocated = before_;
  }
  void Expect() const {
    EXPECT_LT(static_cast<double>(std::clock() - begin_) / CLOCKS_PER_SEC, kMostSeconds);
    EXPECT_LE(most_allocated - before_, static_cast<int64_t>(file_bytes_) + kExtraBytes);
  }

 private:
  const size_t file_bytes_;
  const std::clock_t begin_;
  const int64_t before_;
};

void ExpectNamedError(const absl::Status& status, const std::string& file) {
  EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) || absl::IsNotFound(status))
      << status;
  EXPECT_THAT(std::string(status.message()), StartsWith(file + ": "));
}

// 1 where the tokenizer could be made.
int Use(absl::StatusOr<TokenizerSpec> spec) {
  auto tokenizer = Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return 0;
  const std::string text =
      "ab a12 --\u00e9 <eos><tool>\n  'sx " + std::string(300, 'a') + std::string(300, ' ');
  for (const bool parse_special : {false, true}) {
    const auto ids = (*tokenizer)->Encode(text, {.parse_special = parse_special, .add_special_tokens = true});
    if (!ids.ok()) continue;
    for (const TokenId id : *ids) EXPECT_TRUE(id >= 0 && id < (*tokenizer)->vocab_size());
    (*tokenizer)->Decode(*ids, true);
  }
  return 1;
}

int LoadJson(const std::string& text) {
  const Bounds bounds(text.size());
  int loaded = 0;
  absl::StatusOr<TokenizerSpec> spec = TokenizerSpecFromJson(text, "t.json");
  if (spec.ok()) {
    loaded = Use(std::move(spec));
  } else {
    ExpectNamedError(spec.status(), "t.json");
  }
  bounds.Expect();
  return loaded;
}

TEST(HostileTokenizer, SurvivesATokenizerThatIsCutOff) {
  const std::string small = kSmallJson;
  EXPECT_EQ(LoadJson(small), 1);
  for (size_t size = 0; size < small.size(); ++size) EXPECT_EQ(LoadJson(small.substr(0, size)), 0);
  for (const std::string* text : {&Qwen25Json(), &SmolLm2Json()}) {
    EXPECT_EQ(LoadJson(*text), 1);
    for (size_t percent = 0; percent < 100; ++percent) {
      EXPECT_EQ(LoadJson(text->substr(0, text->size() * percent / 100)), 0) << percent;
    }
  }
}

TEST(HostileTokenizer, SurvivesAlteredTokenizers) {
  Mutator mutator(1);
  int loaded = 0;
  for (int i = 0; i < kMutations; ++i) {
    loaded += LoadJson(mutator.Mutate(kSmallJson));
    ASSERT_FALSE(HasFailure()) << i;
  }
  EXPECT_GT(loaded, kMutations / 20);  // not everything is broken
  EXPECT_LT(loaded, kMutations);
  for (int i = 0; i < 50; ++i) LoadJson(mutator.Mutate(SmolLm2Json()));
}

TEST(HostileTokenizer, SurvivesAlteredConfigurations) {
  Mutator mutator(2);
  const TokenizerSpec original = *TokenizerSpecFromJson(kSmallJson, "t.json");
  int loaded = 0;
  for (int i = 0; i < kMutations; ++i) {
    const std::string text = mutator.Mutate(kSmallConfig);
    const Bounds bounds(text.size());
    TokenizerSpec spec = original;
    const absl::Status status = AddTokenizerConfig(text, "c.json", &spec);
    if (!status.ok()) ExpectNamedError(status, "c.json");
    loaded += status.ok() ? Use(std::move(spec)) : 0;
    bounds.Expect();
    ASSERT_FALSE(HasFailure()) << text;
  }
  EXPECT_GT(loaded, kMutations / 20);
  for (size_t size = 0; size < sizeof(kSmallConfig) - 1; ++size) {
    TokenizerSpec spec = original;
    ExpectNamedError(AddTokenizerConfig(std::string(kSmallConfig, size), "c.json", &spec), "c.json");
  }
}

std::string SmallGguf() {
  const std::vector<std::string> tokens = {
      "a",      "s",       "1",      "2",      "'", "as",           "12",    "'s",
      "\u0120", "\u0120a", "\u00C3", "\u00A9", "e", "\u00C3\u00A9", "<eos>", "<tool>"};
  const std::vector<std::string> merges = {"a s", "1 2", "' s", "\u0120 a", "\u00C3 \u00A9"};
  const std::vector<int32_t> types = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 4};
  const auto strings = [](const std::vector<std::string>& values) {
    std::string bytes;
    for (const std::string& value : values) bytes += GgufBuilder::String(value);
    return bytes;
  };
  return GgufBuilder()
      .Text("tokenizer.ggml.model", "gpt2")
      .Text("tokenizer.ggml.pre", "qwen2")
      .Array("tokenizer.ggml.tokens", 8, tokens.size(), strings(tokens))
      .Array("tokenizer.ggml.token_type", 5, types.size(), BytesOf(types))
      .Array("tokenizer.ggml.merges", 8, merges.size(), strings(merges))
      .U32("tokenizer.ggml.eos_token_id", 14)
      .Text("tokenizer.chat_template", "{{ messages }}")
      .Build();
}

TEST(HostileTokenizer, SurvivesAlteredGgufMetadata) {
  Mutator mutator(3);
  const std::string original = SmallGguf();
  int loaded = 0;
  for (int i = 0; i < kMutations; ++i) {
    const std::string path = WriteFile("hostile.gguf", mutator.Mutate(original));
    const Bounds bounds(original.size());
    absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
    if (file.ok()) {
      absl::StatusOr<TokenizerSpec> spec = TokenizerSpecFromGguf(**file);
      if (!spec.ok()) ExpectNamedError(spec.status(), path);
      loaded += spec.ok() ? Use(std::move(spec)) : 0;
    }
    bounds.Expect();
    ASSERT_FALSE(HasFailure()) << i;
  }
  EXPECT_GT(loaded, kMutations / 20);
}

}  // namespace
}  // namespace ridge::worker
