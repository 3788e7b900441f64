#include "worker/text/gguf_tokenizer.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/text/bpe.h"
#include "worker/text/byte_alphabet.h"

namespace ridge::worker {
namespace {

// By the names that llama.cpp gives to pre-tokenizers.
constexpr char kQwen2Regex[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr char kLlama3Regex[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

absl::Status KeyError(const GgufFile& file, absl::string_view key, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", key, ": ", what));
}

// llama.cpp's numbering of token types.
enum : int64_t {
  kGgufNormal = 1,
  kGgufUnknown = 2,
  kGgufControl = 3,
  kGgufUserDefined = 4,
  kGgufUnused = 5,
  kGgufByte = 6
};

bool IsLlama3(absl::string_view pre) {
  return pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3";
}

absl::Status ReadPreTokenizer(const GgufFile& file, TokenizerSpec* spec) {
  constexpr char kKey[] = "tokenizer.ggml.pre";
  absl::StatusOr<absl::string_view> name = file.GetString(kKey);
  if (!name.ok()) return name.status();
  if (*name == "smollm") {
    spec->splits = {{kDigitSplitRegex}, {kGpt2SplitRegex}};
  } else if (*name == "gpt-2") {
    spec->splits = {{kGpt2SplitRegex}};
  } else if (*name == "qwen2") {
    spec->splits = {{kQwen2Regex}};
    spec->normalize_nfc = true;
  } else if (IsLlama3(*name)) {
    spec->splits = {{kLlama3Regex}};
    spec->ignore_merges = true;
  } else {
    return absl::UnimplementedError(
        absl::StrCat(file.path(), ": ", kKey, ": pre-tokenizer \"", *name, "\" is not supported"));
  }
  return absl::OkStatus();
}

absl::Status ReadTokens(const GgufFile& file, TokenizerSpec* spec) {
  constexpr char kTokens[] = "tokenizer.ggml.tokens", kTypes[] = "tokenizer.ggml.token_type";
  absl::StatusOr<std::vector<absl::string_view>> tokens = file.GetStringArray(kTokens, kMaxVocabularyTokens);
  if (!tokens.ok()) return tokens.status();
  absl::StatusOr<std::vector<int64_t>> types = file.GetIntArray(kTypes);
  if (!types.ok()) return types.status();
  if (types->size() != tokens->size()) {
    return KeyError(file, kTypes, absl::StrCat(types->size(), " types for ", tokens->size(), " tokens"));
  }
  spec->tokens.resize(tokens->size());
  for (size_t id = 0; id < tokens->size(); ++id) {
    TokenizerSpec::Token& token = spec->tokens[id];
    const absl::string_view text = (*tokens)[id];
    switch ((*types)[id]) {
      case kGgufControl:
        token = {std::string(text), TokenKind::kSpecial};
        break;
      case kGgufUserDefined:
        token = {std::string(text), TokenKind::kAdded};
        break;
      case kGgufUnused:
      case kGgufUnknown:
        token = {std::string(text), TokenKind::kUnused};
        break;
      case kGgufNormal: {
        absl::StatusOr<std::string> bytes = BytesFromPrintable(text);
        if (!bytes.ok()) return KeyError(file, absl::StrCat(kTokens, "[", id, "]"), bytes.status().message());
        token = {*std::move(bytes), TokenKind::kNormal};
        break;
      }
      default:
        return KeyError(file, absl::StrCat(kTypes, "[", id, "]"),
                        absl::StrCat("unknown type ", (*types)[id]));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const GgufFile& file, TokenizerSpec* spec) {
  constexpr char kMerges[] = "tokenizer.ggml.merges";
  absl::StatusOr<std::vector<absl::string_view>> merges = file.GetStringArray(kMerges, kMaxMerges);
  if (!merges.ok()) return merges.status();
  spec->merges.reserve(merges->size());
  MergeResolver resolver(spec->tokens);
  for (size_t i = 0; i < merges->size(); ++i) {
    const absl::string_view merge = (*merges)[i];
    const size_t space = merge.find(' ');
    absl::StatusOr<std::string> left = BytesFromPrintable(merge.substr(0, space));
    absl::StatusOr<std::string> right =
        BytesFromPrintable(space == merge.npos ? absl::string_view() : merge.substr(space + 1));
    if (!left.ok() || !right.ok() || left->empty() || right->empty()) {
      return KeyError(file, absl::StrCat(kMerges, "[", i, "]"), "not two byte-level pieces");
    }
    TokenizerSpec::Merge resolved;
    if (!resolver.Resolve(*left, *right, &resolved)) {
      return KeyError(file, absl::StrCat(kMerges, "[", i, "]"), "uses a piece that is not in the vocabulary");
    }
    spec->merges.push_back(resolved);
  }
  return absl::OkStatus();
}

// Optional keys: false where the key is missing.
absl::Status ReadId(const GgufFile& file, absl::string_view key, size_t num_tokens, TokenId* id) {
  if (!file.Has(key)) return absl::OkStatus();
  absl::StatusOr<int64_t> value = file.GetInt(key);
  if (!value.ok()) return value.status();
  if (*value < 0 || *value >= static_cast<int64_t>(num_tokens)) {
    return KeyError(file, key, absl::StrCat(*value, " is not one of the ", num_tokens, " tokens"));
  }
  *id = static_cast<TokenId>(*value);
  return absl::OkStatus();
}

absl::Status ReadFlag(const GgufFile& file, absl::string_view key, bool* flag) {
  if (!file.Has(key)) return absl::OkStatus();
  absl::StatusOr<bool> value = file.GetBool(key);
  if (!value.ok()) return value.status();
  *flag = *value;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> TokenizerSpecFromGguf(const GgufFile& file) {
  constexpr char kModel[] = "tokenizer.ggml.model", kTemplate[] = "tokenizer.chat_template";
  absl::StatusOr<absl::string_view> model = file.GetString(kModel);
  if (!model.ok()) return model.status();
  if (*model != "gpt2") {
    return absl::UnimplementedError(absl::StrCat(file.path(), ": ", kModel, ": \"", *model,
                                                 "\" is not supported, only byte-level BPE (\"gpt2\")"));
  }
  TokenizerSpec spec;
  absl::Status status = ReadPreTokenizer(file, &spec);
  if (status.ok()) status = ReadTokens(file, &spec);
  if (status.ok()) status = ReadMerges(file, &spec);
  if (status.ok()) status = ReadId(file, "tokenizer.ggml.bos_token_id", spec.tokens.size(), &spec.bos_id);
  if (status.ok()) status = ReadId(file, "tokenizer.ggml.eos_token_id", spec.tokens.size(), &spec.eos_id);
  // Llama 3's files leave this out and mean it.
  bool add_bos = IsLlama3(file.GetString("tokenizer.ggml.pre").value_or("")), add_eos = false;
  if (status.ok()) status = ReadFlag(file, "tokenizer.ggml.add_bos_token", &add_bos);
  if (status.ok()) status = ReadFlag(file, "tokenizer.ggml.add_eos_token", &add_eos);
  // Half a tokenizer is broken, not absent.
  if (absl::IsNotFound(status)) return absl::InvalidArgumentError(status.message());
  if (!status.ok()) return status;
  if (add_bos && spec.bos_id >= 0) spec.prefix = {spec.bos_id};
  if (add_eos && spec.eos_id >= 0) spec.suffix = {spec.eos_id};
  if (file.Has(kTemplate)) {
    absl::StatusOr<absl::string_view> text = file.GetString(kTemplate);
    if (!text.ok()) return text.status();
    spec.chat_template = std::string(*text);
  }
  return spec;
}

}  // namespace ridge::worker
