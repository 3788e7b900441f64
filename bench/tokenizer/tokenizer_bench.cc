// Speed of our tokenizer on one core, for compare.py, which measures Hugging Face's beside it.
//
//   tokenizer-bench DIRECTORY FILE...
//
// DIRECTORY is a Hugging Face directory. Each FILE holds documents, separated by a zero byte. Prints a line a
// measurement: name, bytes, tokens, seconds (the best of several rounds), separated by tabs.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/read_file.h"
#include "worker/text/hf_tokenizer.h"
#include "worker/text/text_stream.h"
#include "worker/text/tokenizer.h"

namespace {

using ridge::worker::TokenId;
using ridge::worker::Tokenizer;

constexpr int kRounds = 5;
constexpr int64_t kMaxFileBytes = 1 << 30;

// `run` gives the number of tokens.
void Measure(const std::string& name, size_t bytes, const std::function<size_t()>& run,
             int rounds = kRounds) {
  double best = 1e9;
  size_t tokens = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    tokens = run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::printf("%s\t%zu\t%zu\t%.6f\n", name.c_str(), bytes, tokens, best);
  std::fflush(stdout);
}

void MeasureFile(const Tokenizer& tokenizer, const std::string& path, const std::string& content) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::vector<std::string> documents = absl::StrSplit(content, '\0');
  std::string text;
  for (const std::string& document : documents) text += document;
  std::vector<TokenId> ids;
  Measure(absl::StrCat(name, " documents"), text.size(), [&] {
    size_t tokens = 0;
    for (const std::string& document : documents)
      tokens += tokenizer.Encode(document, {.parse_special = true})->size();
    return tokens;
  });
  Measure(absl::StrCat(name, " one text"), text.size(), [&] {
    ids = *tokenizer.Encode(text, {.parse_special = true});
    return ids.size();
  });
  Measure(absl::StrCat(name, " detokenised"), text.size(), [&] {
    ridge::worker::TextStream stream(&tokenizer, {.stops = {"\n\nUser:", "###"}});
    size_t bytes = 0;
    for (const TokenId id : ids) bytes += stream.Push(id, false, false).text.size();
    return bytes == 0 ? 0 : ids.size();
  });
}

void MeasureRun(const Tokenizer& tokenizer, const std::string& name, const std::string& unit) {
  std::string text;
  while (text.size() < 1'000'000) text += unit;
  Measure(
      absl::StrCat("1 MB of ", name), text.size(),
      [&] { return tokenizer.Encode(text, {.parse_special = true})->size(); }, 1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fputs("usage: tokenizer-bench DIRECTORY FILE...\n", stderr), 2;
  const auto load_begin = std::chrono::steady_clock::now();
  auto spec = ridge::worker::TokenizerSpecFromHfDirectory(argv[1]);
  if (!spec.ok()) return std::fprintf(stderr, "%s\n", std::string(spec.status().message()).c_str()), 1;
  auto tokenizer = Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok())
    return std::fprintf(stderr, "%s\n", std::string(tokenizer.status().message()).c_str()), 1;
  std::printf("load\t0\t0\t%.6f\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - load_begin).count());
  for (int i = 2; i < argc; ++i) {
    const absl::StatusOr<std::string> content = ridge::ReadFile(argv[i], kMaxFileBytes);
    if (!content.ok())
      return std::fprintf(stderr, "%s\n", std::string(content.status().message()).c_str()), 1;
    MeasureFile(**tokenizer, argv[i], *content);
  }
  MeasureRun(**tokenizer, "one letter", "a");
  MeasureRun(**tokenizer, "spaces", " ");
  MeasureRun(**tokenizer, "one emoji", "\U0001f600");
}
