// JSON as strict as serde_json on the way in, the same bytes every time on the way out.
#include "engine/core/base/json.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <limits>

#include "engine/core/base/json_reader.h"
#include "tests/support/process.h"

using namespace moonshard;

namespace {

std::string Nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

std::string ErrorOf(std::string_view text) {
  const Result<JsonValue> result = ParseJson(text, "c.json");
  return result.ok() ? "" : result.diagnostics().at(0).ToText();
}

TEST_CASE("numbers that Python writes and JSON has not") {
  const JsonValue read = ParseJson(R"({"a": Infinity, "b": [-Infinity, NaN, "NaN", "\\\"Infinity"], "Infinity": -1,
                                      "c": 1000000000000000019884624838656})",
                                   "x", JsonDialect::kPython)
                             .ValueOrThrow();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  CHECK(read.Find("a")->AsDouble() == kInfinity);
  const JsonValue::Array& list = read.Find("b")->AsArray();
  CHECK(list.at(0).AsDouble() == -kInfinity);
  CHECK(std::isnan(list.at(1).AsDouble()));
  CHECK(list.at(2).AsString() == "NaN");
  CHECK(list.at(3).AsString() == "\\\"Infinity");
  CHECK(read.Find("Infinity")->AsInt() == -1);
  CHECK(read.Find("c")->AsDouble() == 1000000000000000019884624838656.0);
  CHECK(std::isnan(ParseJson("NaN", "x", JsonDialect::kPython).ValueOrThrow().AsDouble()));
  for (const char* text : {"{NaN: 1}", "[+Infinity]", "[NaN1]", "[aNaN]", "[--Infinity]", "[- Infinity]", "[nan]",
                           "[Infinity Infinity]", "[\"NaN]"}) {
    INFO(text);
    CHECK(!ParseJson(text, "x", JsonDialect::kPython).ok());
  }
  // A fault behind a constant is where the file has it.
  CHECK(ParseJson("[Infinity, x]", "f", JsonDialect::kPython).diagnostics().at(0).where.column == 12);
  CHECK(!ParseJson("[Infinity]", "x").ok());
}

}  // namespace

TEST_CASE("a value is read as what it is") {
  const JsonValue v =
      ParseJson(R"( {"b": [1, -2, 2.0, 1e3, "x", null, true], "a": {"k": 18446744073709551615}} )", "c.json")
          .ValueOrThrow();
  REQUIRE(v.Keys() == std::vector<std::string>{"a", "b"});
  const JsonValue::Array& b = v.Find("b")->AsArray();
  CHECK(b[0].AsInt() == 1);
  CHECK(b[1].AsInt() == -2);
  CHECK(b[2].is_double());
  CHECK(b[2].AsDouble() == 2.0);
  CHECK(b[3].is_double());
  CHECK(b[4].AsString() == "x");
  CHECK(b[5].is_null());
  CHECK(b[6].AsBool());
  CHECK(v.Find("a")->Find("k")->AsDouble() == 18446744073709551615.0);
  CHECK(v.Find("c") == nullptr);
  CHECK(b[0].Find("x") == nullptr);
  CHECK(std::string(b[6].KindName()) == "boolean");
  CHECK_THROWS_AS(b[0].AsString(), InternalError);
  CHECK(ParseJson("-0", "c.json").ValueOrThrow().is_double());
  CHECK(ParseJson("9223372036854775807", "c").ValueOrThrow().AsInt() == std::numeric_limits<int64_t>::max());
  CHECK(ParseJson("-9223372036854775808", "c").ValueOrThrow().AsInt() == std::numeric_limits<int64_t>::min());
}

TEST_CASE("what serde_json refuses is refused") {
  struct Case {
    std::string text;
    std::string error;  // part of it
  };
  const Case cases[] = {
      {"", "unexpected end of input"},
      {"\xEF\xBB\xBF{}", "byte order mark"},
      {std::string("{}\0", 3), "NUL byte"},
      {std::string("{\"a\0\": 1}", 9), "NUL byte"},
      {"{} x", "not valid JSON"},
      {"{}{}", "not valid JSON"},
      {"{'a': 1}", "not valid JSON"},
      {"[1,]", "not valid JSON"},
      {"{\"a\": 1,}", "not valid JSON"},
      {"[01]", "not valid JSON"},
      {"[1.]", "not valid JSON"},
      {"[.5]", "not valid JSON"},
      {"[+1]", "not valid JSON"},
      {"NaN", "not valid JSON"},
      {"[Infinity]", "not valid JSON"},
      {"// c\n1", "not valid JSON"},
      {"\"\xff\"", "not valid JSON"},
      {"\"\xc0\x80\"", "not valid JSON"},
      {"\"\xed\xa0\x80\"", "not valid JSON"},
      {"\"\\ud800\"", "not valid JSON"},
      {"\"\\udc00\"", "not valid JSON"},
      {"\"\\x41\"", "not valid JSON"},
      {"\"a\nb\"", "not valid JSON"},
      {"\v1", "not valid JSON"},
      {"1e400", "out of range"},
      {std::string(400, '9'), "out of range"},
      {Nested(128), "nested deeper than 127"},
      {std::string(200000, '['), "nested deeper than 127"},
      {R"({"a": 1, "b": {"c": 1, "c": 2}})", "key 'c' is duplicated"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text.substr(0, 40));
    CHECK_THAT(ErrorOf(c.text), Catch::Contains(c.error));
  }
  CHECK(ErrorOf(Nested(127)) == "");
  CHECK(ErrorOf("\"\\ud83d\\ude00\"") == "");
  CHECK(ErrorOf("1e-400") == "");
  CHECK(ErrorOf(" \t\r\n1 \t\r\n") == "");
}

TEST_CASE("an error has its place") {
  const Result<JsonValue> result = ParseJson("{\n  \"a\": 1,\n  \"a\": 2\n}\n", "config.json");
  REQUIRE_FALSE(result.ok());
  const SourceSpan& where = result.diagnostics()[0].where;
  CHECK(where.ToString() == "config.json:3");
  CHECK(where.text == "  \"a\": 2");
  CHECK(result.diagnostics()[0].finding == Finding::kBadJson);
  CHECK(SpanOfByte("ab\ncd", "f", 0).column == 1);
  CHECK(SpanOfByte("ab\ncd", "f", 4).line == 2);
  CHECK(SpanOfByte("ab\ncd", "f", 4).column == 2);
  CHECK(SpanOfByte("ab\ncd", "f", 99).line == 2);
  CHECK(SpanOfByte("\n", "f", 0).line == 1);
}

TEST_CASE("files") {
  const Result<JsonValue> missing = ReadJsonFile("/nowhere/config.json");
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.diagnostics()[0].finding == Finding::kFileNotFound);
  CHECK_THAT(missing.diagnostics()[0].message, Catch::Contains("/nowhere/config.json"));
  // Neither waits for a writer nor reads without end.
  const test::ScratchFolder scratch;
  const std::string pipe = scratch / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& path : {pipe, std::string("/dev/zero")}) {
    const Result<JsonValue> endless = ReadJsonFile(path);
    REQUIRE(!endless.ok());
    CHECK(endless.diagnostics().front().finding == Finding::kFileUnreadable);
    CHECK(endless.diagnostics().front().message == "cannot read '" + path + "': it is not a regular file");
  }
  const Result<JsonValue> folder = ReadJsonFile(scratch.path());
  REQUIRE_FALSE(folder.ok());
  CHECK(folder.diagnostics()[0].finding == Finding::kFileUnreadable);
}

TEST_CASE("writing is stable and reads back") {
  JsonValue::Object object;
  object["z"] = JsonValue::Array{1, 2.5, int64_t{-3}};
  object["a"] = "q\"\\\n\x01\xff\xc3\xa9";
  object["m"] = JsonValue::Object{};
  object["l"] = JsonValue::Array{"x", JsonValue::Array{}};
  object["n"] = nullptr;
  object["d"] = 2.0;
  const JsonValue value = object;
  CHECK(WriteJson(value, 0) ==
        "{\"a\":\"q\\\"\\\\\\n\\u0001\xEF\xBF\xBD\xc3\xa9\",\"d\":2.0,\"l\":[\"x\",[]],\"m\":{},\"n\":null,\"z\":[1,2."
        "5,-3]}");
  CHECK(WriteJson(JsonValue(JsonValue::Object{{"a", 1}, {"b", JsonValue::Array{"x"}}, {"c", JsonValue::Array{1, 2}}}),
                  2) == "{\n  \"a\": 1,\n  \"b\": [\n    \"x\"\n  ],\n  \"c\": [1, 2]\n}");
  const double doubles[] = {0.1, 1e-5, 1e300, 5e-324, -0.0, 500000.0, 1.0 / 3, 1e21, 123456789012345680.0};
  for (double d : doubles) {
    CAPTURE(d);
    const JsonValue back = ParseJson(WriteJson(d, 0), "c").ValueOrThrow();
    REQUIRE(back.is_double());
    CHECK(back.AsDouble() == d);
    CHECK(WriteJson(back, 0) == WriteJson(d, 0));
  }
  CHECK(WriteJson(std::numeric_limits<double>::quiet_NaN(), 0) == "null");
  CHECK(ParseJson(WriteJson(value, 3), "c").ValueOrThrow().Find("z")->AsArray()[1] == JsonValue(2.5));
  CHECK_FALSE(JsonValue(1) == JsonValue(1.0));
}
