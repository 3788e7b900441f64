// 20,000 random and nasty strings: the same ids as Hugging Face's tokenizers gives, whose answers are
// recorded as hashes (tests/golden/tokenizer-differential, where make_answers.py has the same generator).
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/text/real_tokenizers.h"
#include "worker/text/hf_tokenizer.h"

namespace ridge::worker {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kStrings = 20000;

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}

  uint64_t Below(uint64_t bound) {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return (z ^ (z >> 31)) % bound;
  }

 private:
  uint64_t state_;
};

std::string Utf8(uint64_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
}

// Strings, or ranges of characters.
std::string Draw(SplitMix64& random, const ordered_json& pool) {
  const ordered_json& item = pool[random.Below(pool.size())];
  if (item.is_string()) return item.get<std::string>();
  const uint64_t first = item[0], last = item[1];
  const uint64_t code = first + random.Below(last - first + 1);
  return code >= 0xD800 && code < 0xE000 ? " " : Utf8(code);
}

std::string MakeString(uint64_t index, const ordered_json& pools) {
  SplitMix64 random(index * 1000003 + 17);
  const uint64_t home = random.Below(pools.size());
  const uint64_t spread = random.Below(4) * 20 + 6;
  const uint64_t count = 1 + random.Below(spread);
  std::string text;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t pool = random.Below(4) > 0 ? home : random.Below(pools.size());
    const uint64_t repeats = random.Below(16) == 0 ? 1 + random.Below(40) : 1;
    const std::string part = Draw(random, pools[pool]);
    for (uint64_t r = 0; r < repeats; ++r) text += part;
  }
  return text;
}

uint32_t Fnv(const std::vector<TokenId>& ids) {
  uint32_t hash = 0x811C9DC5;
  for (const TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x01000193;
    }
  }
  return hash;
}

void ExpectAnswers(const Tokenizer& tokenizer, const std::string& answers) {
  const ordered_json pools = ReadGolden("tokenizer-differential/pools.json");
  ASSERT_EQ(answers.size(), kStrings * 8);
  int wrong = 0;
  for (uint64_t i = 0; i < kStrings; ++i) {
    const std::string text = MakeString(i, pools);
    for (const bool literal : {false, true}) {
      const auto ids = tokenizer.Encode(text, {.parse_special = !literal});
      ASSERT_TRUE(ids.ok()) << ids.status();
      uint32_t expected = 0;
      for (int byte = 3; byte >= 0; --byte) {
        expected = expected << 8 | static_cast<uint8_t>(answers[i * 8 + (literal ? 4 : 0) + byte]);
      }
      if (Fnv(*ids) == expected) continue;
      if (++wrong > 5) continue;  // a few tell enough
      ADD_FAILURE() << "string " << i << (literal ? " literally" : "") << ": "
                    << ordered_json(text).dump(-1, ' ', true) << " gave " << absl::StrJoin(*ids, " ");
    }
  }
  EXPECT_EQ(wrong, 0);
}

void ExpectRecordedAnswers(const Tokenizer& tokenizer, const std::string& model) {
  ExpectAnswers(tokenizer, ReadGoldenText("tokenizer-differential/answers-" + model + ".bin"));
}

TEST(TokenizerDifferential, SmolLm2AgreesWithHuggingFace) {
  ExpectRecordedAnswers(SmolLm2(), "smollm2");
}

TEST(TokenizerDifferential, SmolLm2FromJsonAgreesWithHuggingFace) {
  ExpectRecordedAnswers(SmolLm2FromJson(), "smollm2");
}

TEST(TokenizerDifferential, Qwen25AgreesWithHuggingFace) {
  ExpectRecordedAnswers(Qwen25(), "qwen2.5");
}

// Any other model: a directory with its files and the answers.bin that make_answers.py writes.
TEST(TokenizerDifferential, TheNamedTokenizerAgreesWithHuggingFace) {
  const char* directory = std::getenv("RIDGE_TEST_TOKENIZER");
  if (directory == nullptr) GTEST_SKIP() << "RIDGE_TEST_TOKENIZER names no directory";
  absl::StatusOr<TokenizerSpec> spec = TokenizerSpecFromHfDirectory(directory);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto tokenizer = Tokenizer::Create(*std::move(spec));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::ifstream file(std::string(directory) + "/answers.bin", std::ios::binary);
  ExpectAnswers(**tokenizer, {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
}

}  // namespace
}  // namespace ridge::worker
