#include "worker/text/hf_pre_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/text/split_pattern.h"

namespace ridge::worker {
namespace {

constexpr size_t kMaxRegexBytes = 1 << 14;
constexpr size_t kMaxSteps = 64;

std::string Name(absl::string_view name) {
  return JsonQuote(name.substr(0, 40));
}

// The text itself, as a regular expression.
std::string Literal(absl::string_view text) {
  std::string regex;
  for (const char c : text) {
    if (absl::string_view("\\^$.|?*+()[]{}#&-").find(c) != absl::string_view::npos) regex += '\\';
    regex += c;
  }
  return regex;
}

// One pre-tokenizer's fields, whatever its type and their order.
struct Fields {
  std::string type;
  std::string regex;
  bool has_pattern = false;
  std::string behavior;
  bool invert = false;
  bool individual_digits = false;
  bool add_prefix_space = true;  // what absent fields of ByteLevel stand for
  bool use_regex = true;
  HfPreTokenizer sequence;
};

void ReadPattern(JsonReader& reader, Fields* fields) {
  fields->has_pattern = true;
  reader.Object([&](absl::string_view kind) {
    std::string pattern = reader.String();
    if (pattern.empty()) return reader.Fail("empty");
    if (pattern.size() > kMaxRegexBytes) return reader.Fail("too long");
    if (kind == "Regex") {
      fields->regex = std::move(pattern);
      // Only to say so here, where the field has a name.
      const absl::Status status = SplitPattern::Compile({fields->regex}).status();
      if (absl::IsUnimplemented(status)) return reader.FailUnsupported(status.message());
      if (!status.ok()) return reader.Fail(status.message());
    } else if (kind == "String") {
      fields->regex = Literal(pattern);
    } else {
      reader.FailUnsupported("only Regex and String are supported");
    }
  });
}

void Append(HfPreTokenizer more, JsonReader& reader, HfPreTokenizer* whole) {
  if (whole->is_byte_level && (more.is_byte_level || !more.splits.empty())) {
    reader.FailUnsupported("a step after ByteLevel is not supported");
  }
  if (whole->splits.size() + more.splits.size() > kMaxSteps) reader.Fail("too many steps");
  if (!reader.ok()) return;
  whole->is_byte_level |= more.is_byte_level;
  for (SplitStep& step : more.splits) whole->splits.push_back(std::move(step));
}

Fields ReadFields(JsonReader& reader) {
  Fields fields;
  reader.Object([&](absl::string_view field) {
    if (field == "type") {
      fields.type = reader.String();
    } else if (field == "pattern") {
      ReadPattern(reader, &fields);
    } else if (field == "behavior") {
      fields.behavior = reader.String();
    } else if (field == "invert") {
      fields.invert = reader.Bool();
    } else if (field == "individual_digits") {
      fields.individual_digits = reader.Bool();
    } else if (field == "add_prefix_space") {
      fields.add_prefix_space = reader.Bool();
    } else if (field == "use_regex") {
      fields.use_regex = reader.Bool();
    } else if (field == "pretokenizers") {
      reader.Array([&](size_t) { Append(ReadHfPreTokenizer(reader), reader, &fields.sequence); });
    } else {
      reader.Skip();
    }
  });
  return fields;
}

SplitStep::Behavior BehaviorOf(const std::string& name, JsonReader& reader) {
  if (name == "Isolated") return SplitStep::Behavior::kIsolated;
  if (name == "Removed") return SplitStep::Behavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitStep::Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitStep::Behavior::kMergedWithNext;
  if (name == "Contiguous") return SplitStep::Behavior::kContiguous;
  reader.Fail(absl::StrCat("behavior: ", Name(name), " is unknown"));
  return SplitStep::Behavior::kIsolated;
}

HfPreTokenizer Make(Fields fields, JsonReader& reader) {
  HfPreTokenizer made;
  if (fields.type == "Sequence") {
    made = std::move(fields.sequence);
  } else if (fields.type == "Split") {
    if (!fields.has_pattern) reader.Fail("pattern: missing");
    made.splits.push_back({std::move(fields.regex), BehaviorOf(fields.behavior, reader), fields.invert});
  } else if (fields.type == "Digits") {
    made.splits.push_back({absl::StrCat(kDigitSplitRegex, fields.individual_digits ? "" : "+")});
  } else if (fields.type == "ByteLevel") {
    made.is_byte_level = true;
    if (fields.use_regex || fields.add_prefix_space) {
      made.splits.push_back({fields.use_regex ? kGpt2SplitRegex : ""});
      made.splits.back().prefix_space = fields.add_prefix_space;
    }
  } else if (fields.type.empty()) {
    reader.Fail("type: missing");
  } else {
    reader.FailUnsupported(absl::StrCat("type: ", Name(fields.type),
                                        " is not supported, only Sequence, Split, Digits and ByteLevel"));
  }
  return made;
}

// The special tokens of a template's "single" list, before and after the text.
void ReadTemplate(JsonReader& reader, HfPostProcessor* made) {
  bool after = false;
  reader.Array([&](size_t) {
    reader.Object([&](absl::string_view kind) {
      if (kind == "Sequence") {
        if (std::exchange(after, true)) reader.FailUnsupported("the text twice is not supported");
        reader.Skip();
        return;
      }
      if (kind != "SpecialToken") return reader.FailUnsupported("not supported");
      reader.Object([&](absl::string_view field) {
        if (field != "id") {
          reader.Skip();
          return;
        }
        (after ? made->suffix : made->prefix).push_back(reader.String());
      });
    });
  });
  if (!after) reader.Fail("the text itself is missing");
}

}  // namespace

HfPreTokenizer ReadHfPreTokenizer(JsonReader& reader) {
  if (reader.TakeNull()) return {};
  Fields fields = ReadFields(reader);
  return reader.ok() ? Make(std::move(fields), reader) : HfPreTokenizer();
}

HfPostProcessor ReadHfPostProcessor(JsonReader& reader) {
  HfPostProcessor made;
  if (reader.TakeNull()) return made;
  const auto add = [&made](HfPostProcessor more) {
    made.prefix.insert(made.prefix.begin(), more.prefix.begin(), more.prefix.end());
    made.suffix.insert(made.suffix.end(), more.suffix.begin(), more.suffix.end());
  };
  std::string type;
  reader.Object([&](absl::string_view field) {
    if (field == "type") {
      type = reader.String();
      if (type != "ByteLevel" && type != "Sequence" && type != "TemplateProcessing") {
        reader.FailUnsupported(
            absl::StrCat(Name(type), " is not supported, only ByteLevel, Sequence and TemplateProcessing"));
      }
    } else if (field == "processors") {
      reader.Array([&](size_t) { add(ReadHfPostProcessor(reader)); });
    } else if (field == "single") {
      ReadTemplate(reader, &made);
    } else {
      reader.Skip();  // pairs of texts, offsets, and the ids, which the vocabulary has too
    }
  });
  if (type.empty()) reader.Fail("type: missing");
  return made;
}

}  // namespace ridge::worker
