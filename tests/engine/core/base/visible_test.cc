#include "engine/core/base/visible.h"

#include <catch2/catch.hpp>

#include "engine/core/base/json.h"
#include "engine/core/base/quoted.h"

namespace moonshard {
namespace {

std::string Utf8(char32_t code) {
  const auto byte = [](char32_t value) { return static_cast<char>(value); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xC0 | code >> 6), byte(0x80 | (code & 0x3F))};
  if (code < 0x10000) return {byte(0xE0 | code >> 12), byte(0x80 | (code >> 6 & 0x3F)), byte(0x80 | (code & 0x3F))};
  return {byte(0xF0 | code >> 18), byte(0x80 | (code >> 12 & 0x3F)), byte(0x80 | (code >> 6 & 0x3F)),
          byte(0x80 | (code & 0x3F))};
}

TEST_CASE("what is shown as it is, and what as an escape") {
  struct Row {
    std::string text;
    std::string line;
    std::string lines;
  };
  const std::vector<Row> rows = {
      {"", "", ""},
      {"model.layers.0", "model.layers.0", "model.layers.0"},
      {"caf\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x8C\x99", "caf\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x8C\x99",
       "caf\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x8C\x99"},
      {"a\nb\tc\\n", "a\\nb\\tc\\n", "a\n  b\tc\\n"},
      {"a\nb\n", "a\\nb\\n", "a\n  b\n"},
      {"\xCD\x8F\xE1\x85\x9F\xE3\x85\xA4\xEF\xB8\x8F", "\\u{34f}\\u{115f}\\u{3164}\\u{fe0f}",
       "\\u{34f}\\u{115f}\\u{3164}\\u{fe0f}"},
      {"\xE1\xA0\x8B\xE2\x81\xAA\xF3\xA0\x84\x80", "\\u{180b}\\u{206a}\\u{e0100}", "\\u{180b}\\u{206a}\\u{e0100}"},
      {"\r\x1b[2J\x7f", "\\x0d\\x1b[2J\\x7f", "\\x0d\\x1b[2J\\x7f"},
      {std::string("\0x", 2), "\\x00x", "\\x00x"},
      {"\xC2\x85\xC2\x9B\xC2\xA0", "\\u{85}\\u{9b}\xC2\xA0", "\\u{85}\\u{9b}\xC2\xA0"},
      {"\xE2\x80\xAE\xE2\x81\xA6\xD8\x9C\xE2\x80\xA8", "\\u{202e}\\u{2066}\\u{61c}\\u{2028}",
       "\\u{202e}\\u{2066}\\u{61c}\\u{2028}"},
      {"\xEF\xBB\xBF\xF3\xA0\x80\x81", "\\u{feff}\\u{e0001}", "\\u{feff}\\u{e0001}"},
      // Commands to machines of continuous integration; \u{a0} is a blank to GitHub's.
      {"::error::x", "\\x3a:error::x", "\\x3a:error::x"},
      {"a\n \xC2\xA0::error::x", "a\\n \xC2\xA0::error::x", "a\n   \xC2\xA0\\x3a:error::x"},
      {" ::x at::Tensor", " \\x3a:x at::Tensor", " \\x3a:x at::Tensor"},
      {"x ##[error]y ##vso[z ## [ ##1[", "x \\x23#[error]y \\x23#vso[z ## [ ##1[",
       "x \\x23#[error]y \\x23#vso[z ## [ ##1["},
      // No UTF-8: a byte that follows nothing, a start without the rest, overlong, a surrogate, beyond the last code.
      {"\x80\xC3", "\\x80\\xc3", "\\x80\\xc3"},
      {"\xC0\x8A\xE0\x80\x8A", "\\xc0\\x8a\\xe0\\x80\\x8a", "\\xc0\\x8a\\xe0\\x80\\x8a"},
      {"\xED\xA0\x80\xF4\x90\x80\x80\xF8", "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80\\xf8",
       "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80\\xf8"},
  };
  for (const Row& row : rows) {
    CHECK(Visible(row.text) == row.line);
    CHECK(VisibleLines(row.text, "  ") == row.lines);
    CHECK(Visible(row.line) == row.line);
  }
}

TEST_CASE("every code point is shown as it is or escaped, and JSON means the same") {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    const std::string text = Utf8(code);
    const VisibleCharacter character = FirstCharacter(text);
    const bool good = character.is_utf8 && character.code == code && character.bytes == text.size() &&
                      (Visible(text) == text) == character.shown && Visible(Visible(text)) == Visible(text);
    if (!good) FAIL_CHECK("U+" << std::hex << static_cast<unsigned>(code));
    if (character.shown && code != '"' && code != '\\') continue;
    const std::string json = VisibleJson(JsonQuoted(text));
    const bool same = Visible(json) == json && ParseJson(json, "").ValueOrThrow().AsString() == text;
    if (!same) FAIL_CHECK("JSON of U+" << std::hex << static_cast<unsigned>(code) << ": " << json);
  }
  CHECK(VisibleJson(R"(["::a ##[b]"])") == R"(["::a \u0023#[b]"])");
  CHECK(VisibleJson("{\n\t\"a\": 1\n}") == "{\n\t\"a\": 1\n}");
}

TEST_CASE("literals") {
  CHECK(Quoted("::x##[y]") == R"("::x\x23#[y]")");
  CHECK(Quoted("a\"\\\n\t\x1b\xE2\x80\xAE\xFF") == "\"a\\\"\\\\\\n\t\\x1b\\u{202e}\\xff\"");
  CHECK(PythonQuoted("a\"\\\n\t\x1b\xC2\x9B\xE2\x80\xAE\xF3\xA0\x80\x81\xFF") ==
        "\"a\\\"\\\\\\n\t\\x1b\\u009b\\u202e\\U000e0001\\udcff\"");
}

}  // namespace
}  // namespace moonshard
