#include "worker/text/json_reader.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  JsonReader reader(text, "file");
  reader.Skip();
  reader.Finish();
  return std::string(reader.status().message());
}

TEST(JsonReader, ReadsWhatTheCallerAsksFor) {
  JsonReader reader(
      R"( {"a": [1, -20], "b": {"c": "x\n\u00e9\ud83d\ude00\/"}, "d": true, "e": null, "f": 1.5e3} )",
      "file");
  std::vector<int64_t> numbers;
  std::string text, number, raw;
  bool flag = false;
  reader.Object([&](absl::string_view key) {
    if (key == "a") {
      reader.Array([&](size_t) { numbers.push_back(reader.Int()); });
    } else if (key == "b") {
      reader.Object([&](absl::string_view) { text = reader.String(); });
    } else if (key == "d") {
      flag = reader.Bool();
    } else if (key == "e") {
      EXPECT_TRUE(reader.TakeNull());
    } else {
      number = std::string(reader.Number());
    }
  });
  reader.Finish();
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_THAT(numbers, ElementsAre(1, -20));
  EXPECT_EQ(text, "x\n\u00e9\U0001f600/");
  EXPECT_TRUE(flag);
  EXPECT_EQ(number, "1.5e3");
}

TEST(JsonReader, ReadsAValueLater) {
  JsonReader reader(R"({"first": [7], "second": 8})", "file");
  JsonReader::Place place;
  int64_t second = 0, first = 0;
  reader.Object([&](absl::string_view key) {
    if (key == "first") {
      place = reader.Later();
    } else {
      second = reader.Int();
    }
  });
  reader.Finish();
  reader.Resume(place, [&] { reader.Array([&](size_t) { first = reader.Int(); }); });
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(first, 7);
  EXPECT_EQ(second, 8);
  reader.Resume(place, [&] { reader.Array([&](size_t) { reader.String(); }); });
  EXPECT_EQ(reader.status().message(), "file: first[0]: not a string");
}

TEST(JsonReader, NamesTheFieldThatIsWrong) {
  JsonReader reader(R"({"model": {"merges": [1, "x"]}})", "file");
  reader.Object([&](absl::string_view) {
    reader.Object([&](absl::string_view) { reader.Array([&](size_t) { reader.Int(); }); });
  });
  EXPECT_EQ(reader.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(reader.status().message(), "file: model.merges[1]: not a number");
}

TEST(JsonReader, RefusesWhatIsNotJson) {
  for (const char* text :
       {"", " ", "{", "[1", "[1,", "{\"a\"", "{\"a\":", "{\"a\":1", "\"a", "\"\\", "tru", "nul"}) {
    EXPECT_NE(ErrorOf(text), "") << text;
  }
  for (const char* text :
       {"[1,]", "{\"a\":1,}", "[1 2]", "{1:2}", "01", "-", "1.", "1e", "+1", "'a'", "nulll", "[1]]",
        "\"\\x\"", "\"\\u12g4\"", "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\"", "\"a\tb\"", "NaN"}) {
    EXPECT_NE(ErrorOf(text), "") << text;
  }
  EXPECT_THAT(ErrorOf("\"\xFF\""), HasSubstr("not valid UTF-8"));
  EXPECT_THAT(ErrorOf(std::string("[1]\0", 4)), HasSubstr("no JSON"));
}

TEST(JsonReader, BoundsTheDepth) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(ErrorOf(nested(100)), "");
  EXPECT_THAT(ErrorOf(nested(101)), HasSubstr("nested too deep"));
  EXPECT_THAT(ErrorOf(std::string(1000000, '[')), HasSubstr("nested too deep"));
}

TEST(JsonReader, BoundsIntegers) {
  const auto read = [](const char* text) {
    JsonReader reader(text, "file");
    reader.Int();
    return reader.status().ok();
  };
  EXPECT_TRUE(read("9223372036854775807"));
  EXPECT_FALSE(read("9223372036854775808"));
  EXPECT_FALSE(read("1.0"));
  EXPECT_FALSE(read("1e3"));
}

TEST(JsonQuote, EscapesAsPythonDoes) {
  EXPECT_EQ(JsonQuote("a\"\\/\b\f\n\r\t\x01\x1f\x7f\u00e9"),
            "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\u00e9\"");
}

}  // namespace
}  // namespace ridge::worker
