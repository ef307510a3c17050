#include "dsl/language/state/sources.h"

#include <catch2/catch.hpp>

namespace moonshard {
namespace {

TEST_CASE("a word's column is where it stands alone, outside a comment") {
  CHECK(ColumnOf("at(\"x\", shared)", "shared") == 9);
  CHECK(ColumnOf("unshared = shared", "shared") == 12);
  CHECK(ColumnOf("x = 1 -- shared", "shared") == 0);
  CHECK(ColumnOf("x = \"--\" .. shared", "shared") == 13);
  CHECK(ColumnOf("mesh.tp", "tp") == 6);
  CHECK(ColumnOf("a.*.b", "a.*.b") == 1);
  CHECK(ColumnOf("anything", "") == 0);
}

TEST_CASE("lines without their line ends, and the code line before") {
  Sources sources;
  sources.Add("a.lua", "first,\r\n\n-- note\nlast", false);
  CHECK(sources.SpanOf("a.lua", 1).text == "first,");
  CHECK(sources.SpanOf("a.lua", 9).text.empty());
  CHECK(sources.SpanOf("b.lua", 1).text.empty());
  CHECK(sources.CodeLineBefore("a.lua", 4) == 1);
  CHECK(sources.CodeLineBefore("a.lua", 1) == 0);
}

TEST_CASE("a key of a table over several lines") {
  Sources sources;
  sources.Add("a.lua", "return plan {\n  at(\"x\", y),\n  if_x == 2,\n  key = 1,\n}", false);
  CHECK(sources.SpanOfKey("a.lua", 1, "key").line == 4);
  CHECK(sources.SpanOfKey("a.lua", 1, "if_x").line == 1);
  CHECK(sources.SpanOfKey("a.lua", 1, "none").line == 1);
}

}  // namespace
}  // namespace moonshard
