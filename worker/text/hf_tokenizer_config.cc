#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker/model/mapped_file.h"
#include "worker/text/hf_tokenizer.h"
#include "worker/text/json_reader.h"
#include "worker/text/nfc.h"

namespace ridge::worker {
namespace {

constexpr size_t kMaxTokenizerBytes = 128 << 20;
constexpr size_t kMaxConfigBytes = 16 << 20;  // lists every added token once more

absl::string_view AsText(const MappedFile& file) {
  return absl::string_view(file.bytes().data(), file.bytes().size());
}

absl::StatusOr<MappedFile> OpenFile(const std::filesystem::path& path, size_t max_bytes) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (file.ok() && file->bytes().size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": larger than ", max_bytes >> 20, " MiB"));
  }
  return file;
}

// A token in a configuration: its text, or an object that has it, or null.
std::optional<std::string> TokenText(JsonReader& reader) {
  if (reader.TakeNull()) return std::nullopt;
  if (reader.Peek() == JsonReader::Kind::kString) return reader.String();
  std::optional<std::string> text;
  reader.Object([&](absl::string_view field) {
    if (field == "content") {
      text = reader.String();
    } else {
      reader.Skip();
    }
  });
  if (!text.has_value()) reader.Fail("content: missing");
  return text;
}

// One template, or a list of named ones, of which "default" counts.
std::string ChatTemplateText(JsonReader& reader) {
  if (reader.TakeNull()) return "";
  if (reader.Peek() == JsonReader::Kind::kString) return reader.String();
  std::string chosen;
  bool has_default = false;
  reader.Array([&](size_t index) {
    std::string name, text;
    reader.Object([&](absl::string_view field) {
      if (field == "name") {
        name = reader.String();
      } else if (field == "template") {
        text = reader.String();
      } else {
        reader.Skip();
      }
    });
    if (name != "default" && (has_default || index > 0)) return;
    has_default |= name == "default";
    chosen = std::move(text);
  });
  return chosen;
}

// An entry of added_tokens_decoder, which says once more, and sometimes alone, what added_tokens of
// tokenizer.json says.
struct AddedTokenEntry {
  int64_t id = -1;
  std::string content;
  std::optional<bool> special;
  bool normalized = false;
};

AddedTokenEntry ReadAddedToken(absl::string_view key, JsonReader& reader) {
  AddedTokenEntry entry;
  if (!absl::SimpleAtoi(key, &entry.id) || entry.id < 0 || entry.id >= kMaxVocabularyTokens) {
    reader.Fail(absl::StrCat("the id is not in [0, ", kMaxVocabularyTokens, ")"));
  }
  reader.Object([&](absl::string_view field) {
    if (field == "content") {
      entry.content = reader.String();
    } else if (field == "special") {
      entry.special = reader.Bool();
    } else if (field == "normalized") {
      entry.normalized = reader.Bool();
    } else if (field == "single_word" || field == "lstrip" || field == "rstrip") {
      if (reader.Bool()) reader.FailUnsupported("true is not supported");
    } else {
      reader.Skip();
    }
  });
  if (reader.ok() && entry.content.empty()) reader.Fail("content: missing or empty");
  return entry;
}

// What a tokenizer_config.json says, before it is applied.
struct Config {
  std::vector<AddedTokenEntry> added_tokens;
  std::optional<std::string> bos, eos;
  std::optional<bool> add_bos, add_eos;
  std::string chat_template;
};

Config ReadConfig(JsonReader& reader) {
  Config config;
  const auto flag = [&](std::optional<bool>* value) {
    if (!reader.TakeNull()) *value = reader.Bool();
  };
  reader.Object([&](absl::string_view field) {
    if (field == "bos_token") {
      config.bos = TokenText(reader);
    } else if (field == "eos_token") {
      config.eos = TokenText(reader);
    } else if (field == "add_bos_token") {
      flag(&config.add_bos);
    } else if (field == "add_eos_token") {
      flag(&config.add_eos);
    } else if (field == "added_tokens_decoder") {
      if (reader.TakeNull()) return;
      reader.Object([&](absl::string_view id) { config.added_tokens.push_back(ReadAddedToken(id, reader)); });
    } else if (field == "chat_template") {
      config.chat_template = ChatTemplateText(reader);
    } else {
      reader.Skip();
    }
  });
  reader.Finish();
  return config;
}

// Adds the tokens that are not there yet; of the others `special` counts, as in the package.
void AddTokens(const std::vector<AddedTokenEntry>& entries, TokenizerSpec* spec, JsonReader& reader) {
  for (const AddedTokenEntry& entry : entries) {
    if (!reader.ok()) return;
    const auto fail = [&](absl::string_view what) {
      reader.Fail(absl::StrCat("added_tokens_decoder.", entry.id, ": ",
                               JsonQuote(entry.content.substr(0, 40)), what));
    };
    const auto id = static_cast<size_t>(entry.id);
    if (id >= spec->tokens.size()) spec->tokens.resize(id + 1, {.bytes = "", .kind = TokenKind::kUnused});
    TokenizerSpec::Token& token = spec->tokens[id];
    if (!token.bytes.empty() && token.bytes != entry.content) {
      return fail(" is not what tokenizer.json gives to this id");
    }
    const bool is_added = token.kind == TokenKind::kAdded || token.kind == TokenKind::kSpecial;
    if (!is_added && entry.normalized && !IsPlainlyNfc(entry.content))
      return fail(" is normalized: not supported");
    const TokenKind kind =
        entry.special.value_or(token.kind == TokenKind::kSpecial) ? TokenKind::kSpecial : TokenKind::kAdded;
    token = {entry.content, kind, is_added ? token.normalized : entry.normalized};
  }
}

// The token with this text; -1 where there is no text.
TokenId Find(const std::optional<std::string>& text, const char* field, const TokenizerSpec& spec,
             JsonReader& reader) {
  if (!text.has_value() || text->empty()) return -1;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const TokenizerSpec::Token& token = spec.tokens[id];
    if (token.kind != TokenKind::kUnused && token.bytes == *text) return static_cast<TokenId>(id);
  }
  reader.Fail(absl::StrCat(field, ": ", JsonQuote(text->substr(0, 40)), " is not one of the tokens"));
  return -1;
}

absl::Status AddChatTemplateFile(const std::filesystem::path& root, TokenizerSpec* spec) {
  std::error_code ignored;
  const std::filesystem::path plain = root / "chat_template.jinja", json = root / "chat_template.json";
  if (std::filesystem::exists(plain, ignored)) {
    absl::StatusOr<MappedFile> file = OpenFile(plain, kMaxConfigBytes);
    if (!file.ok()) return file.status();
    spec->chat_template = std::string(AsText(*file));
  } else if (std::filesystem::exists(json, ignored)) {
    absl::StatusOr<MappedFile> file = OpenFile(json, kMaxConfigBytes);
    if (!file.ok()) return file.status();
    JsonReader reader(AsText(*file), json.string());
    reader.Object([&](absl::string_view field) {
      if (field == "chat_template") {
        spec->chat_template = ChatTemplateText(reader);
      } else {
        reader.Skip();
      }
    });
    reader.Finish();
    return reader.status();
  }
  return absl::OkStatus();
}

absl::Status NoTokenizer(const std::filesystem::path& root) {
  std::error_code ignored;
  for (const char* name : {"tokenizer.model", "spiece.model", "vocab.json", "vocab.txt"}) {
    if (!std::filesystem::exists(root / name, ignored)) continue;
    return absl::UnimplementedError(absl::StrCat(
        (root / name).string(),
        ": this kind of tokenizer is not supported (SentencePiece, WordPiece or a vocabulary without "
        "tokenizer.json), only byte-level BPE in a tokenizer.json"));
  }
  return absl::NotFoundError(absl::StrCat((root / "tokenizer.json").string(), ": no such file"));
}

}  // namespace

absl::Status AddTokenizerConfig(absl::string_view text, absl::string_view path, TokenizerSpec* spec) {
  JsonReader reader(text, path);
  Config config = ReadConfig(reader);
  AddTokens(config.added_tokens, spec, reader);
  spec->bos_id = Find(config.bos, "bos_token", *spec, reader);
  spec->eos_id = Find(config.eos, "eos_token", *spec, reader);
  // An explicit choice goes before the tokenizer's own template.
  const auto surround = [&](std::optional<bool> add, TokenId id, const char* field,
                            std::vector<TokenId>* side) {
    if (!add.has_value()) return;
    if (*add && id < 0) return reader.Fail(absl::StrCat(field, ": there is no such token"));
    *side = *add ? std::vector<TokenId>{id} : std::vector<TokenId>();
  };
  surround(config.add_bos, spec->bos_id, "add_bos_token", &spec->prefix);
  surround(config.add_eos, spec->eos_id, "add_eos_token", &spec->suffix);
  spec->chat_template = std::move(config.chat_template);
  return reader.status();
}

absl::StatusOr<TokenizerSpec> TokenizerSpecFromHfDirectory(const std::string& directory) {
  const std::filesystem::path root(directory);
  const std::filesystem::path path = root / "tokenizer.json", config_path = root / "tokenizer_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return NoTokenizer(root);
  absl::StatusOr<MappedFile> file = OpenFile(path, kMaxTokenizerBytes);
  if (!file.ok()) return file.status();
  absl::StatusOr<TokenizerSpec> spec = TokenizerSpecFromJson(AsText(*file), path.string());
  if (!spec.ok()) return spec;
  if (std::filesystem::exists(config_path, ignored)) {
    absl::StatusOr<MappedFile> config = OpenFile(config_path, kMaxConfigBytes);
    if (!config.ok()) return config.status();
    absl::Status status = AddTokenizerConfig(AsText(*config), config_path.string(), &*spec);
    if (!status.ok()) return status;
  }
  if (absl::Status status = AddChatTemplateFile(root, &*spec); !status.ok()) return status;
  return spec;
}

}  // namespace ridge::worker
