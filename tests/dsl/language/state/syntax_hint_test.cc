// Hints about texts that Lua refuses, by the message that Lua gives for them.
#include "dsl/language/state/syntax_hint.h"

#include <catch2/catch.hpp>

namespace moonshard {
namespace {

TEST_CASE("a bracket that is not closed is found through strings and comments") {
  const std::string text = "return plan {\n  at(\"a(b\", colwise {},  -- (\n  at('x', rowwise {}),\n}\n";
  const SyntaxHint hint = HintFor("unexpected symbol near '}'", "}", text, 4);
  CHECK(hint.help == "a '(' on line 2 is not closed");
  CHECK(hint.line == 2);
  CHECK(HintFor("unexpected symbol near '}'", "}", "return { f(1), }\n}", 2).help.empty());
}

TEST_CASE("habits of other languages") {
  CHECK(HintFor("'}' expected near '!'", "!", "return plan { a != b }", 1).help == "write ~= for \"not equal\"");
  CHECK(HintFor("syntax error near '+'", "+", "n += 1", 1).help == "Lua has no +=: write n = n + 1");
  CHECK(HintFor("syntax error near '+'", "+", "n = n + + 1", 1).help.empty());
  CHECK(HintFor("unexpected symbol near '#'", "#", "\n  # a comment", 2).help == "a comment begins with --");
  CHECK(HintFor("unexpected symbol near '/'", "/", "// a comment", 1).help == "a comment begins with --");
  CHECK(HintFor("'then' expected near '&'", "&", "if a && b then", 1).help == "write and, or, not");
  CHECK(HintFor("unexpected symbol near '{'", "{", "{ \"a\": 1 }", 1).help ==
        "a plan begins with return or local: return plan { ... }");
}

TEST_CASE("what is none of these gets no hint") {
  CHECK(HintFor("'end' expected near <eof>", "", "if a then", 2).help.empty());
  CHECK(HintFor("'}' expected near 'at'", "at", "return {\n  a\n  at(b)\n}", 3).help.empty());
}

}  // namespace
}  // namespace moonshard
