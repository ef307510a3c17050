#include "engine/plan/match/pattern.h"

#include <re2/re2.h>
#include <catch2/catch.hpp>

#include <random>

#include "engine/core/base/text.h"
#include "engine/layout/module_tree.h"

namespace moonshard {
namespace {

std::string Regex(const std::string& glob) { return TranslatePattern(glob, PatternSyntax::kGlob).ValueOrThrow().regex; }

TEST_CASE("globs as RE2") {
  const auto [glob, regex] = GENERATE(table<std::string, std::string>({
      {"model.norm", "model\\.norm"},
      {"model.layers.*.mlp", "model\\.layers\\.[^.]+\\.mlp"},
      {"*_proj", "[^.]*_proj"},
      {"model.**.q_proj", "model\\.(?:[^.]+\\.)*q_proj"},
      {"model.**", "model(?:\\.[^.]+)*"},
      {"**", "(?:[^.]+(?:\\.[^.]+)*)?"},
      {"{q,k}_proj", "(?:q|k)_proj"},
      {"layers.{0..2}", "layers\\.(?:0|1|2)"},
      {"layers.[0-3]?", "layers\\.[0-3][^.]"},
      {"a.[!x]", "a\\.[^.x]"},
      {"{a.b,c}.*", "(?:a\\.b|c)\\.[^.]+"},
      {"a.**.**.b", "a\\.(?:[^.]+\\.)*b"},
      {"", ""},
  }));
  CHECK(Regex(glob) == regex);
}

TEST_CASE("what a pattern matches") {
  const auto [glob, path, matches] = GENERATE(table<std::string, std::string, bool>({
      {"model.layers.*.mlp", "model.layers.0.mlp", true},
      {"model.layers.*.mlp", "model.layers.0.1.mlp", false},
      {"model.layers.*.mlp", "model.layers..mlp", false},
      {"model.layers.*.mlp", "xmodel.layers.0.mlp", false},
      {"model.layers.*.mlp", "model.layers.0.mlp.x", false},
      {"model.layers*", "model.layers", true},
      {"model.**", "model", true},
      {"model.**", "model.a.b", true},
      {"model.**", "models.a", false},
      {"**.q_proj", "q_proj", true},
      {"**.q_proj", "a.b.q_proj", true},
      {"**.q_proj", "a.xq_proj", false},
      {"a.?", "a..", false},
      {"l.{0..15}", "l.15", true},
      {"l.{0..15}", "l.16", false},
      {"l.{0..15}", "l.1", true},
      {"{a,b{c,d}}", "bd", true},
      {"{a,}x", "x", true},
      {"{a,**}", "x.y", true},
      {"x.{**.a,b}", "x.y.z.a", true},
      {"x.{**.a,b}", "x.a", true},
      {"{x.**,b}.c", "x.c", true},
  }));
  CAPTURE(glob, path);
  CHECK(RE2::FullMatch(path, RE2(Regex(glob))) == matches);
}

TEST_CASE("patterns that cannot be read say why and where") {
  const auto [glob, text] = GENERATE(table<std::string, std::string>({
      {"a.{b", "'{' without its '}' (at character 3)"},
      {"a.b}", "'}' without its opening brace (at character 4)"},
      {"a[b", "'[' without its ']' (at character 2)"},
      {"a..b", "two dots with no component between them (at character 2)"},
      {"a.{0..1}..b", "two dots with no component between them (at character 9)"},
      {"a.", "a dot at the start or at the end"},
      {"a.**b", "'**' matches full components and must be alone between dots"},
      {"a.***", "'**' matches full components and must be alone between dots"},
      {"a.{5..2}", "the range {5..2} counts down"},
      {"a.{0..99999}", "the range {0..99999} has more than 4096 numbers"},
      {"a.{0..x}", "'{0..x}' is not a range of numbers such as {0..15}"},
      {"a.[.]", "a character class cannot contain the dot that separates components"},
      {"a.[+-9]", "a character class cannot contain the dot that separates components"},
      {"{a,**}.b", "'**' cannot be a full alternative of braces that have text beside them"},
      {"a.{b,{c,**}}", "'**' cannot be a full alternative of braces that have text beside them"},
      {"x{**.a,b}", "'**' matches full components and must be alone between dots"},
      {"{a,b.**}c", "'**' matches full components and must be alone between dots"},
      {"a{b,c}**.d", "'**' matches full components and must be alone between dots"},
  }));
  const Result<Pattern> pattern = TranslatePattern(glob, PatternSyntax::kGlob, {"p.lua", 3, 0, 0, ""});
  REQUIRE_FALSE(pattern.ok());
  CHECK(pattern.diagnostics().front().ToText().find("p.lua:3: error[MS0201]: pattern '" + glob + "': " + text) == 0);
}

TEST_CASE("only patterns that can tell numbers apart say so") {
  const auto number_blind = {"model.layers.*.mlp", "**", "*_proj", "{q,k}.*"};
  for (const char* glob : number_blind) {
    CHECK_FALSE(TranslatePattern(glob, PatternSyntax::kGlob).ValueOrThrow().depends_on_numbers);
  }
  for (const char* glob : {"layers.0", "layers.{0..3}", "l.?", "l.[0-9]*", "fc1"}) {
    CHECK(TranslatePattern(glob, PatternSyntax::kGlob).ValueOrThrow().depends_on_numbers);
  }
  CHECK(TranslatePattern("a", PatternSyntax::kRegex).ValueOrThrow().depends_on_numbers);
}

// Straight from the words of the manual, without RE2: `*` and `?` within a component, `**` over components.
bool NaiveComponent(const char* glob, const char* text) {
  if (*glob == '\0') return *text == '\0';
  if (*glob == '*') return NaiveComponent(glob + 1, text) || (*text != '\0' && NaiveComponent(glob, text + 1));
  return *text != '\0' && (*glob == '?' || *glob == *text) && NaiveComponent(glob + 1, text + 1);
}

bool Naive(const std::vector<std::string>& glob, size_t g, const std::vector<std::string>& path, size_t p) {
  if (g == glob.size()) return p == path.size();
  if (glob[g] == "**") return Naive(glob, g + 1, path, p) || (p < path.size() && Naive(glob, g, path, p + 1));
  return p < path.size() && NaiveComponent(glob[g].c_str(), path[p].c_str()) && !path[p].empty() &&
         Naive(glob, g + 1, path, p + 1);
}

TEST_CASE("random globs match what a naive matcher matches, and path classes agree") {
  std::mt19937 random(7);
  const auto pick = [&](auto& from) { return from[random() % from.size()]; };
  const std::vector<std::string> components = {"a", "ab", "b", "0", "7", "12", "a_b"};
  const std::vector<std::string> globs = {"a", "ab", "*", "**", "a*", "*b", "?", "0", "12", "*_*", "b"};
  int matched = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::string> path(1 + random() % 4);
    for (std::string& component : path) component = pick(components);
    std::vector<std::string> glob(1 + random() % 4);
    for (std::string& component : glob) component = pick(globs);
    const std::string path_text = Join(path, ".");
    const std::string glob_text = Join(glob, ".");
    const Pattern pattern = TranslatePattern(glob_text, PatternSyntax::kGlob).ValueOrThrow();
    const bool expected = Naive(glob, 0, path, 0);
    matched += expected ? 1 : 0;
    CAPTURE(glob_text, path_text, pattern.regex);
    REQUIRE(RE2::FullMatch(path_text, RE2(pattern.regex)) == expected);
    if (!pattern.depends_on_numbers) {
      REQUIRE(RE2::FullMatch(PathClassOf(path_text), RE2(pattern.regex)) == expected);
    }
  }
  CHECK(matched > 1000);
}

TEST_CASE("a range of numbers is these numbers and no others") {
  for (const auto& [first, last] : std::vector<std::pair<int, int>>{{0, 9},
                                                                    {0, 10},
                                                                    {0, 60},
                                                                    {3, 17},
                                                                    {9, 10},
                                                                    {10, 99},
                                                                    {11, 98},
                                                                    {99, 100},
                                                                    {0, 127},
                                                                    {95, 1005},
                                                                    {127, 4096},
                                                                    {1000, 1099},
                                                                    {989, 1010},
                                                                    {7, 4000}}) {
    const std::string text = "l.{" + std::to_string(first) + ".." + std::to_string(last) + "}.w";
    const Result<Pattern> pattern = TranslatePattern(text, PatternSyntax::kGlob);
    REQUIRE(pattern.ok());
    const RE2 regex(pattern.value().regex);
    CAPTURE(text, pattern.value().regex);
    CHECK(pattern.value().alternatives.size() == static_cast<size_t>(last - first + 1));
    for (int number = 0; number < 5200; ++number) {
      const std::string path = "l." + std::to_string(number) + ".w";
      if (RE2::FullMatch(path, regex) != (number >= first && number <= last)) FAIL(path);
    }
    for (const char* path : {"l..w", "l.00.w", "l.01.w", "l.007.w", "l.5x.w", "l.-1.w", "l.10.0.w"}) {
      CHECK_FALSE(RE2::FullMatch(path, regex));
    }
  }
}

TEST_CASE("a set finds what each pattern finds alone, in order") {
  const std::vector<std::string> regexes = {Regex("a.*"), Regex("**.b"), Regex("a.b"), Regex("c")};
  const PatternSet set = PatternSet::Compile(regexes).ValueOrThrow();
  std::vector<int> found = {9};
  REQUIRE(set.Match("a.b", found));
  CHECK(found == std::vector<int>{0, 1, 2});
  REQUIRE(set.Match("x", found));
  CHECK(found.empty());
}

TEST_CASE("a set without memory is an error, never no match") {
  std::vector<std::string> regexes;
  for (int i = 0; i < 1000; ++i) regexes.push_back("(?:[^.]+\\.)*x" + std::to_string(i) + "[^.]*y(?:\\.[^.]+)*");
  const Result<PatternSet> compiled = PatternSet::Compile(regexes, 1 << 16);
  if (!compiled.ok()) {
    CHECK(compiled.diagnostics().front().finding == Finding::kPatternMemory);
    return;
  }
  std::vector<int> found;
  CHECK_FALSE(compiled.value().Match("a.x1y", found));
}

}  // namespace
}  // namespace moonshard
