#include "worker/text/python_json.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ridge::worker {
namespace {

using ::testing::HasSubstr;

// What json.dumps(json.loads(...), ensure_ascii=False) of Python 3.11 gives.
TEST(PythonJson, WritesWhatPythonWrites) {
  const std::pair<const char*, const char*> cases[] = {
      {"{}", "{}"},
      {" { \"b\":[ ] ,\"a\":{\"c\":null}}", "{\"b\": [], \"a\": {\"c\": null}}"},
      {"{\"a\":[1,2.50,true,\"\\u00e9\\/\"]}", "{\"a\": [1, 2.5, true, \"\u00e9/\"]}"},
      {"{\"a\":[-0,-0.0,0e5,1E5,1e15,1e16,123456789012345678]}",
       "{\"a\": [0, -0.0, 0.0, 100000.0, 1000000000000000.0, 1e+16, 123456789012345678]}"},
      {"{\"a\":[0.0001,0.00001,1e-7,1.5e-10,1e100,5e-324,1e-400]}",
       "{\"a\": [0.0001, 1e-05, 1e-07, 1.5e-10, 1e+100, 5e-324, 0.0]}"},
      {"{\"a\":[0.1,12345.678,1.7976931348623157e308,9007199254740993.0]}",
       "{\"a\": [0.1, 12345.678, 1.7976931348623157e+308, 9007199254740992.0]}"},
  };
  for (const auto& [json, expected] : cases) {
    const auto text = PythonJsonObject(json, "x");
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, expected);
  }
}

TEST(PythonJson, IndentsWhatPythonIndents) {
  EXPECT_EQ(*PythonJsonObject("{\"a\":[1,{}],\"b\":{\"c\":[]}}", "x", 4),
            "{\n    \"a\": [\n        1,\n        {}\n    ],\n    \"b\": {\n        \"c\": []\n    }\n}");
}

TEST(PythonJson, NamesWhatItRefuses) {
  const auto error_of = [](const char* json) {
    return std::string(PythonJsonObject(json, "tools[0]").status().message());
  };
  EXPECT_EQ(error_of("[]"), "tools[0]: not a JSON object");
  EXPECT_EQ(error_of(""), "tools[0]: ends in the middle");
  EXPECT_THAT(error_of("{} {}"), HasSubstr("tools[0]: more than one value"));
  EXPECT_EQ(error_of("{\"a\": {\"b\": 1, \"b\": 2}}"), "tools[0]: a.b: given twice");
  EXPECT_EQ(error_of("{\"a\": -1e400}"), "tools[0]: a: a number out of range");
}

}  // namespace
}  // namespace ridge::worker
