// Tokenizers and chat templates of real models, against recorded answers.
#include <algorithm>
#include <ctime>

#include "absl/strings/escaping.h"
#include "common/hash.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/text/real_tokenizers.h"
#include "worker/text/chat_template.h"
#include "worker/text/detokenizer.h"

namespace ridge::worker {
namespace {

using nlohmann::ordered_json;

struct Real {
  const char* name;
  const Tokenizer& (*tokenizer)();
  const char* folder;
  size_t encode_cases, decode_cases;
};

class RealTokenizer : public testing::TestWithParam<Real> {
 protected:
  const Tokenizer& tokenizer() { return GetParam().tokenizer(); }
  ordered_json Golden(const std::string& file) {
    return ReadGolden(std::string(GetParam().folder) + "/" + file);
  }
};

INSTANTIATE_TEST_SUITE_P(Models, RealTokenizer,
                         testing::Values(Real{"SmolLm2", SmolLm2, "tokenizer-smollm2", 432, 163},
                                         Real{"SmolLm2FromJson", SmolLm2FromJson, "tokenizer-smollm2", 432,
                                              163},
                                         Real{"Qwen25", Qwen25, "tokenizer-qwen2.5", 431, 86}),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(Qwen25, UnpacksToTheModelsOwnFile) {
  Sha256 hash;
  hash.Update(Qwen25Json());
  EXPECT_EQ(hash.HexDigest(), "c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539");
}

TEST_P(RealTokenizer, EncodesEveryRecordedText) {
  const ordered_json cases = Golden("tokenizer_cases.json");
  ASSERT_EQ(cases["encode"].size(), GetParam().encode_cases);
  for (const ordered_json& c : cases["encode"]) {
    const auto ids = tokenizer().Encode(c["text"].get<std::string>(), {.parse_special = c["parse_special"]});
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, c["ids"].get<std::vector<TokenId>>()) << c["text"];
  }
}

TEST_P(RealTokenizer, DecodesEveryRecordedSequence) {
  const ordered_json cases = Golden("tokenizer_cases.json");
  ASSERT_EQ(cases["decode"].size(), GetParam().decode_cases);
  for (const ordered_json& c : cases["decode"]) {
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(absl::BytesToHexString(tokenizer().Decode(ids, false)), c["bytes_hex"]);
    for (const bool skip_special : {false, true}) {
      IncrementalDetokenizer detokenizer;
      std::string text;
      for (const TokenId id : ids) text += detokenizer.Push(tokenizer().Decode({id}, skip_special));
      text += detokenizer.Flush();
      EXPECT_EQ(text, c[skip_special ? "text_skip_special" : "text"]) << c["ids"];
    }
  }
}

// Processor time, so that a busy machine does not matter; the square of the length would take minutes.
TEST_P(RealTokenizer, EncodesOneEndlessRunInTime) {
  for (const std::string unit :
       {"a", " ", "\n", "<", "7", "\u00e9", "\u4e2d", "\U0001f600", "e\u0301", "a ", " \n"}) {
    std::string text;
    while (text.size() < 1000000) text += unit;
    const std::clock_t begin = std::clock();
    const std::vector<TokenId> ids = tokenizer().Encode(text, {.parse_special = true}).value();
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 2.0) << unit;
    if (unit == "e\u0301") continue;  // normalisation changes it
    EXPECT_EQ(tokenizer().Decode(ids, false), text);
  }
}

}  // namespace
}  // namespace ridge::worker
