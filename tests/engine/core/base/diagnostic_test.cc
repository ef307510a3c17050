// What a user reads: the text of a diagnostic, and the table of findings behind it.
#include "engine/core/base/diagnostic.h"

#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "engine/core/base/check.h"
#include "engine/core/base/result.h"

using namespace moonshard;

TEST_CASE("a diagnostic's text") {
  Diagnostic d = MakeDiagnostic(Finding::kRuleConflict, "two rules claim 'a.b'",
                                {.file = "p.lua", .line = 12, .column = 6, .length = 3, .text = "  at(\"a\", x)"});
  d.path = "a.b";
  d.declared = "shard(0)";
  d.required = "one rule";
  d.help = "remove one";
  d.related.push_back({.file = "p.lua", .line = 3, .text = "at(\"*\", y)"});
  CHECK(d.ToText() ==
        "p.lua:12: error[MS0204]: two rules claim 'a.b'\n"
        "    12 |   at(\"a\", x)\n"
        "       |      ^^^\n"
        "    at: a.b\n"
        "    declared: shard(0)\n"
        "    required: one rule\n"
        "    help: remove one\n"
        "    see: p.lua:3\n"
        "    3 | at(\"*\", y)");
  CHECK(MakeDiagnostic(Finding::kUnusedAxis, "axis 'cp' is unused").ToText() == "warning[MS0307]: axis 'cp' is unused");
  CHECK(MakeDiagnostic(Finding::kBadJson, "x", {.file = "f"}).ToText() == "f: error[MS0405]: x");
  // A tab before the caret stays one.
  CHECK_THAT(
      MakeDiagnostic(Finding::kSyntax, "x", {.file = "f", .line = 1, .column = 2, .length = 1, .text = "\ty"}).ToText(),
      Catch::EndsWith("\n      | \t^"));
}

TEST_CASE("several diagnostics, and whether one of them is an error") {
  const Diagnostic error = MakeDiagnostic(Finding::kBadJson, "x");
  const Diagnostic warning = MakeDiagnostic(Finding::kUnusedAxis, "y");
  CHECK(ToText(Diagnostics{error, warning}) == "error[MS0405]: x\nwarning[MS0307]: y\n");
  CHECK(ToText(Diagnostics{}).empty());
  CHECK(HasErrors({warning, error}));
  CHECK_FALSE(HasErrors({warning}));
  CHECK(std::string(PlanError({error}).what()) == "error[MS0405]: x\n");
}

TEST_CASE("a result has a value or an error") {
  const Diagnostic error = MakeDiagnostic(Finding::kBadJson, "x");
  const Diagnostic warning = MakeDiagnostic(Finding::kUnusedAxis, "y");
  CHECK(Result<int>(3, {warning}).ok());
  CHECK_FALSE(Result<int>(3, {error}).ok());
  CHECK_THROWS_AS(Result<int>(Diagnostics{warning}), InternalError);
  CHECK_THROWS_AS(Result<int>(error).value(), InternalError);
  CHECK_THROWS_AS(Result<int>(error).ValueOrThrow(), PlanError);
  Diagnostics all = {warning};
  CHECK(Result<int>(3, {warning}).Collect(all) == 3);
  CHECK_FALSE(Result<int>(error).Collect(all));
  CHECK(all.size() == 3);
}

TEST_CASE("identifiers are unique, in order and of their stage") {
  std::string last;
  for (const FindingInfo& info : AllFindings()) {
    const std::string id = info.id;
    REQUIRE(id.size() == 6);
    CHECK(id > last);
    last = id;
    CHECK(&InfoOf(info.finding) == &info);
    CHECK_FALSE(std::string(info.title).empty());
  }
  CHECK(static_cast<size_t>(Finding::kInternal) + 1 == AllFindings().size());
}

TEST_CASE("a failed check has its place") {
  CHECK_NOTHROW(Check(true, "x"));
  try {
    Check(false, "broken");
    FAIL("Check did not throw");
  } catch (const InternalError& error) {
    CHECK_THAT(error.what(), Catch::Contains("diagnostic_test.cc:") && Catch::Contains(": broken"));
  }
}

namespace {

Diagnostic At(const std::string& line, int column, int length) {
  return MakeDiagnostic(Finding::kSyntax, "wrong", {"a.lua", 7, column, length, line});
}

}  // namespace

TEST_CASE("colours wrap the words and change none") {
  Diagnostic d = At("  at(x)", 3, 2);
  d.path = "model";
  const std::string text = d.ToText(true);
  CHECK(text.starts_with("\033[1ma.lua:7:\033[0m \033[1;31merror[MS0101]:\033[0m \033[1mwrong\033[0m\n"));
  CHECK(text.find("\033[1;32m^^\033[0m") != std::string::npos);
  CHECK(d.ToText().find('\033') == std::string::npos);
}

TEST_CASE("the caret stands under characters, not bytes") {
  CHECK(At("\"\xc3\xa4\xc3\xb6\", x", 9, 1).ToText() ==
        "a.lua:7: error[MS0101]: wrong\n    7 | \"\xc3\xa4\xc3\xb6\", x\n      |       ^");
}

TEST_CASE("of a long line the part around the caret is shown") {
  const std::string text = At(std::string(1000, 'a') + "X" + std::string(1000, 'b'), 1001, 500).ToText();
  const size_t line = text.find(" | ") + 3;
  const std::string shown = text.substr(line, text.find('\n', line) - line);
  CHECK(shown == "..." + std::string(80, 'a') + "X" + std::string(79, 'b') + "...");
  const std::string caret = text.substr(text.rfind(" | ") + 3);
  CHECK(caret == std::string(83, ' ') + std::string(80, '^'));
  CHECK(At(std::string(160, 'a'), 1, 1).ToText().find("...") == std::string::npos);
  CHECK(At(std::string(161, 'a'), 1, 1).ToText().find("a...\n") != std::string::npos);
}

TEST_CASE("a source line cannot write to the terminal") {
  const std::string text = At("at(\"\033[2J\x07\x7f\")", 1, 2).ToText();
  CHECK(text.find('\033') == std::string::npos);
  CHECK(text.find('\x07') == std::string::npos);
  CHECK(text.find("at(\" [2J  \")") != std::string::npos);
}

TEST_CASE("a text of others reaches no terminal and forges no line") {
  CHECK(SafeText("a\033]0;x\007\tb\x7f\xc2\x9b caf\xc3\xa9") == "a\\x1b]0;x\\x07\tb\\x7f\\u{9b} caf\xc3\xa9");
  CHECK(SafeText("first\r\nplan.lua:1: no errors") == "first\\x0d\n        plan.lua:1: no errors");
  CHECK(SafeText("caf\xc3\xa9!", 4) == "caf... (6 bytes)");
  Diagnostic d =
      MakeDiagnostic(Finding::kScriptError, "m\033[2J", {"f\033.lua", 2, 3, 1, "x\033y" + std::string(5000, 'z')});
  d.help = "h\033";
  d.declared = "d\033";
  const std::string text = d.ToText();
  CHECK(text.find('\033') == std::string::npos);
  CHECK(text.size() < 700);
  d.where = {"f.lua", 1, 2, 1, "\tat(x)"};
  CHECK(d.ToText() ==
        "f.lua:1: error[MS0108]: m\\x1b[2J\n    1 | \tat(x)\n      | \t^\n    declared: d\\x1b\n    help: h\\x1b");
}
