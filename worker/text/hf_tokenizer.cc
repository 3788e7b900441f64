#include "worker/text/hf_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "worker/text/bpe.h"
#include "worker/text/byte_alphabet.h"
#include "worker/text/hf_pre_tokenizer.h"
#include "worker/text/json_reader.h"
#include "worker/text/nfc.h"

namespace ridge::worker {
namespace {

// The parts of a tokenizer.json, in whatever order they come.
class TokenizerJson {
 public:
  TokenizerJson(absl::string_view text, absl::string_view path) : reader_(text, path) {}

  absl::StatusOr<TokenizerSpec> Read() {
    reader_.Object([this](absl::string_view key) { Part(key); });
    reader_.Finish();
    Check();
    if (reader_.ok()) ReadMerges();
    if (reader_.ok()) AddSurroundings();
    if (!reader_.ok()) return reader_.status();
    return std::move(spec_);
  }

 private:
  void Part(absl::string_view key) {
    if (key == "model") {
      has_model_ = true;
      reader_.Object([this](absl::string_view field) { ModelPart(field); });
    } else if (key == "added_tokens") {
      if (reader_.TakeNull()) return;
      reader_.Array([this](size_t) { AddedToken(); });
    } else if (key == "normalizer") {
      Normalizer();
    } else if (key == "pre_tokenizer") {
      pre_tokenizer_ = ReadHfPreTokenizer(reader_);
    } else if (key == "post_processor") {
      post_processor_ = ReadHfPostProcessor(reader_);
    } else if (key == "decoder") {
      Decoder();
    } else {
      reader_.Skip();  // version, truncation and padding
    }
  }

  void ModelPart(absl::string_view field) {
    if (field == "type") {
      const std::string type = reader_.String();
      if (type != "BPE") {
        reader_.FailUnsupported(absl::StrCat(JsonQuote(type.substr(0, 40)), " is not supported",
                                             type == "Unigram" ? " (SentencePiece)" : "",
                                             ", only byte-level BPE"));
      }
    } else if (field == "vocab") {
      reader_.Object([this](absl::string_view piece) { VocabularyEntry(piece); });
    } else if (field == "merges") {
      merges_ = reader_.Later();
    } else if (field == "ignore_merges") {
      spec_.ignore_merges = !reader_.TakeNull() && reader_.Bool();
    } else if (field == "byte_fallback") {
      if (!reader_.TakeNull() && reader_.Bool()) {
        reader_.FailUnsupported("only byte-level BPE is supported, not SentencePiece's");
      }
    } else if (field == "continuing_subword_prefix" || field == "end_of_word_suffix") {
      if (!reader_.TakeNull() && !reader_.String().empty()) reader_.FailUnsupported("not supported");
    } else if (field == "dropout") {
      if (!reader_.TakeNull() && reader_.Number().find_first_of("123456789") != absl::string_view::npos) {
        reader_.FailUnsupported("not supported");
      }
    } else if (field == "unk_token") {
      if (!reader_.TakeNull()) unknown_ = reader_.String();
    } else if (field == "fuse_unk") {
      spec_.fuse_unknown = !reader_.TakeNull() && reader_.Bool();
    } else {
      reader_.Skip();
    }
  }

  // The token of this id, which must be free; nullptr after an error.
  TokenizerSpec::Token* NewToken(int64_t id) {
    if (!reader_.ok()) return nullptr;
    if (id < 0 || id >= kMaxVocabularyTokens) {
      reader_.Fail(absl::StrCat("id ", id, " is not in [0, ", kMaxVocabularyTokens, ")"));
      return nullptr;
    }
    if (static_cast<size_t>(id) >= spec_.tokens.size()) {
      spec_.tokens.resize(static_cast<size_t>(id) + 1, {.bytes = "", .kind = TokenKind::kUnused});
    }
    return &spec_.tokens[static_cast<size_t>(id)];
  }

  void VocabularyEntry(absl::string_view piece) {
    const int64_t id = reader_.Int();
    TokenizerSpec::Token* token = NewToken(id);
    if (token == nullptr) return;
    if (piece.empty()) return reader_.Fail("an empty token");
    if (token->kind == TokenKind::kSpecial || token->kind == TokenKind::kAdded) return;  // listed before
    if (!token->bytes.empty()) return reader_.Fail(absl::StrCat("id ", id, " is given twice"));
    absl::StatusOr<std::string> bytes = BytesFromPrintable(piece);
    // What is not byte-level stands in no text that merges could make.
    if (bytes.ok()) {
      *token = {*std::move(bytes), TokenKind::kNormal};
    } else {
      token->bytes = std::string(piece);
    }
  }

  // After the vocabulary, wherever they stand in the file.
  void ReadMerges() {
    MergeResolver resolver(spec_.tokens);
    if (resolver.duplicate() >= 0) {
      return reader_.Fail(
          absl::StrCat("model.vocab: the token of id ", resolver.duplicate(), " has another id too"));
    }
    if (!merges_.has_value()) return;
    reader_.Resume(*merges_, [&] {
      reader_.Array([&](size_t index) {
        if (index == static_cast<size_t>(kMaxMerges))
          return reader_.Fail(absl::StrCat("more than ", kMaxMerges));
        MergeEntry(resolver);
      });
    });
  }

  void MergeEntry(MergeResolver& resolver) {
    std::string parts[2];
    if (reader_.Peek() == JsonReader::Kind::kString) {
      parts[0] = reader_.String();
      const size_t space = std::min(parts[0].find(' '), parts[0].size());
      parts[1] = parts[0].substr(std::min(space + 1, parts[0].size()));
      parts[0].resize(space);
    } else {
      reader_.Array([&](size_t i) {
        if (i == 2) return reader_.Fail("more than two pieces");
        parts[i] = reader_.String();
      });
    }
    if (!reader_.ok()) return;
    absl::StatusOr<std::string> left = BytesFromPrintable(parts[0]), right = BytesFromPrintable(parts[1]);
    if (!left.ok() || !right.ok() || left->empty() || right->empty()) {
      return reader_.Fail("not two byte-level pieces");
    }
    TokenizerSpec::Merge merge;
    if (!resolver.Resolve(*left, *right, &merge)) {
      return reader_.Fail("uses a piece that is not in the vocabulary");
    }
    spec_.merges.push_back(merge);
  }

  void AddedToken() {
    int64_t id = -1;
    std::string content;
    bool special = false, normalized = false;
    reader_.Object([&](absl::string_view field) {
      if (field == "id") {
        id = reader_.Int();
      } else if (field == "content") {
        content = reader_.String();
      } else if (field == "special") {
        special = reader_.Bool();
      } else if (field == "normalized") {
        normalized = reader_.Bool();
      } else if (field == "single_word" || field == "lstrip" || field == "rstrip") {
        if (reader_.Bool()) reader_.FailUnsupported("true is not supported");
      } else {
        reader_.Skip();
      }
    });
    if (!reader_.ok()) return;
    if (content.empty()) return reader_.Fail("content: missing or empty");
    if (normalized && !IsPlainlyNfc(content)) {
      return reader_.FailUnsupported("normalized: not supported for this content");
    }
    TokenizerSpec::Token* token = NewToken(id);
    if (token == nullptr) return;
    if (token->kind == TokenKind::kSpecial || token->kind == TokenKind::kAdded) {
      return reader_.Fail(absl::StrCat("id ", id, " is given twice"));
    }
    *token = {std::move(content), special ? TokenKind::kSpecial : TokenKind::kAdded, normalized};
  }

  void Normalizer() {
    if (reader_.TakeNull()) return;
    std::string type;
    reader_.Object([&](absl::string_view field) {
      if (field == "type") {
        type = reader_.String();
        if (type == "NFC") {
          spec_.normalize_nfc = true;
        } else if (type == "Precompiled" || type == "Prepend") {
          reader_.FailUnsupported(absl::StrCat(JsonQuote(type),
                                               " is of SentencePiece's tokenizers, which are not supported, "
                                               "only byte-level BPE"));
        } else if (type != "Sequence") {
          reader_.FailUnsupported(
              absl::StrCat(JsonQuote(type.substr(0, 40)), " is not supported, only NFC and Sequence"));
        }
      } else if (field == "normalizers") {
        reader_.Array([this](size_t) { Normalizer(); });
      } else {
        reader_.Skip();
      }
    });
    if (type.empty()) reader_.Fail("type: missing");
  }

  // The decoder of byte-level tokens is what Tokenizer does; another one would give another text.
  void Decoder() {
    if (reader_.TakeNull()) return;
    reader_.Object([&](absl::string_view field) {
      if (field == "type") {
        const std::string type = reader_.String();
        if (type != "ByteLevel" && type != "Sequence") {
          reader_.FailUnsupported(
              absl::StrCat(JsonQuote(type.substr(0, 40)), " is not supported, only ByteLevel"));
        }
      } else if (field == "decoders") {
        reader_.Array([this](size_t) { Decoder(); });
      } else {
        reader_.Skip();
      }
    });
  }

  void Check() {
    if (!reader_.ok()) return;
    if (!has_model_) return reader_.Fail("model: missing");
    if (spec_.tokens.empty()) return reader_.Fail("model.vocab: missing or empty");
    if (!pre_tokenizer_.is_byte_level) {
      return reader_.FailUnsupported(
          "pre_tokenizer: only byte-level BPE is supported, and no ByteLevel is here");
    }
    if (unknown_.has_value()) FindUnknown();
  }

  // Whether a text can hold a byte that is no token.
  bool LacksBytes() const {
    bool has_byte[256] = {};
    for (const TokenizerSpec::Token& token : spec_.tokens) {
      if (token.kind == TokenKind::kNormal && token.bytes.size() == 1) {
        has_byte[static_cast<uint8_t>(token.bytes[0])] = true;
      }
    }
    for (int byte = 0; byte < 0xF5; ++byte) {
      if (!has_byte[byte] && byte != 0xC0 && byte != 0xC1) return true;
    }
    return false;
  }

  void FindUnknown() {
    for (size_t id = 0; id < spec_.tokens.size(); ++id) {
      const TokenizerSpec::Token& token = spec_.tokens[id];
      if (token.kind != TokenKind::kUnused && token.bytes == *unknown_)
        spec_.unknown_id = static_cast<TokenId>(id);
    }
    if (spec_.unknown_id < 0 && LacksBytes()) {
      reader_.Fail(
          absl::StrCat("model.unk_token: ", JsonQuote(unknown_->substr(0, 40)), " is not one of the tokens"));
    }
  }

  // The special tokens around a text, by their text.
  void AddSurroundings() {
    spec_.splits = std::move(pre_tokenizer_.splits);
    absl::flat_hash_map<absl::string_view, TokenId> ids;
    for (size_t id = 0; id < spec_.tokens.size(); ++id) {
      if (spec_.tokens[id].kind == TokenKind::kSpecial) ids.emplace(spec_.tokens[id].bytes, id);
    }
    const auto add = [&](const std::vector<std::string>& texts, std::vector<TokenId>* side) {
      for (const std::string& text : texts) {
        const auto id = ids.find(text);
        if (id == ids.end()) {
          return reader_.Fail(absl::StrCat("post_processor: ", JsonQuote(text.substr(0, 40)),
                                           " is not one of the special tokens"));
        }
        side->push_back(id->second);
      }
    };
    add(post_processor_.prefix, &spec_.prefix);
    add(post_processor_.suffix, &spec_.suffix);
  }

  JsonReader reader_;
  TokenizerSpec spec_;
  HfPreTokenizer pre_tokenizer_;
  HfPostProcessor post_processor_;
  std::optional<JsonReader::Place> merges_;
  bool has_model_ = false;
  std::optional<std::string> unknown_;
};

}  // namespace

absl::StatusOr<TokenizerSpec> TokenizerSpecFromJson(absl::string_view text, absl::string_view path) {
  return TokenizerJson(text, path).Read();
}

}  // namespace ridge::worker
