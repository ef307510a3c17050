#include "dsl/commands/repl/line_runner.h"

#include <catch2/catch.hpp>

#include "tests/dsl/inputs.h"

namespace moonshard {
namespace {

LineInputs InputsOf(int64_t tp) {
  const PlanInputs plan = LlamaInputs(tp);
  LineInputs inputs;
  inputs.config = plan.config;
  inputs.mesh = plan.mesh;
  inputs.model = std::make_shared<const ModuleTree>(SmallLlama());
  return inputs;
}

std::string Run(LineRunner& runner, const std::string& text) {
  const Result<std::vector<JsonValue>> result = runner.Run(text, runner.KindOf(text), {"t", 1, ""});
  if (!result.ok()) return InfoOf(result.diagnostics().front().finding).id;
  std::string out;
  for (const JsonValue& value : result.value()) out += (out.empty() ? "" : " ") + WriteJson(value, 0);
  return out;
}

TEST_CASE("a text is an expression, statements, unfinished or wrong") {
  LineRunner runner(InputsOf(2));
  using enum ChunkKind;
  for (const auto& [text, kind] :
       std::initializer_list<std::pair<const char*, ChunkKind>>{{"1", kExpression},
                                                                {"f(x)", kExpression},
                                                                {"1, 2", kExpression},
                                                                {"a == b -- c", kExpression},
                                                                {"", kExpression},  // nothing, which is worth nothing
                                                                {"x = 1", kStatements},
                                                                {"local x", kStatements},
                                                                {"return 1", kStatements},
                                                                {"for i = 1, 2 do", kUnfinished},
                                                                {"f(", kUnfinished},
                                                                {"1 +", kUnfinished},
                                                                {"x = {", kUnfinished},
                                                                {"[[long", kUnfinished},
                                                                {"--[[ comment", kUnfinished},
                                                                {"function f()\n  return", kUnfinished},
                                                                {"x = = 1", kInvalid},
                                                                {"end", kInvalid},
                                                                {"'open", kInvalid},
                                                                {"1 1", kInvalidExpression},
                                                                {"{}}", kInvalidExpression},
                                                                {"\x1bLua", kInvalid}}) {
    INFO(text);
    CHECK(runner.KindOf(text) == kind);
  }
}

TEST_CASE("locals at the top of a line stay, those of functions and blocks do not") {
  LineRunner runner(InputsOf(2));
  CHECK(Run(runner, "local a <const>, b <close> = 1, nil") == "");
  CHECK(Run(runner, "a") == "1");
  CHECK(Run(runner, "local s = '<const> stays' -- <const>\nlocal t <const> = 4") == "");
  CHECK(Run(runner, "s, t") == "\"<const> stays\" 4");
  CHECK(Run(runner, "local u <const> = [[<const>]] .. [==[]] <const>]==] --[[ <const>\n]]") == "");
  CHECK(Run(runner, "u") == "\"<const>]] <const>\"");
  CHECK(Run(runner, "do local inner = 1 end local function f() local deep = 2 return deep end f()") == "");
  CHECK(Run(runner, "f()") == "2");
  CHECK(Run(runner, "inner") == "MS0102");
  CHECK(Run(runner, "deep") == "MS0102");
  CHECK(Run(runner, "for k = 1, 3 do local v = k end") == "");
  CHECK(Run(runner, "v") == "MS0102");
  CHECK(Run(runner, "local shard = 3") == "");  // a name of one's own goes before the word
  CHECK(Run(runner, "shard") == "3");
  CHECK(Run(runner, "shard = nil") == "");
  CHECK(Run(runner, "tostring(shard(0))") == "\"shard(0)\"");
  CHECK(runner.Names() == std::vector<std::string>{"_", "a", "f", "s", "t", "u"});
}

TEST_CASE("a line that fails changes nothing") {
  LineRunner runner(InputsOf(2));
  Run(runner, "x = 1");
  CHECK(Run(runner, "x = 2; y = 3; error('no')") == "MS0108");
  CHECK(Run(runner, "x") == "1");
  CHECK(Run(runner, "y") == "MS0102");
  CHECK(Run(runner, "x = nosuch") == "MS0102");
  CHECK(Run(runner, "x") == "1");
  CHECK(Run(runner, "x = nil; while true do end") == "MS0109");
  CHECK(Run(runner, "x") == "1");
}

TEST_CASE("values are shown as data, whatever they are") {
  LineRunner runner(InputsOf(2));
  CHECK(Run(runner, "{ 1, 2, { x = true } }") == "[1,2,{\"x\":true}]");
  CHECK(Run(runner, "local t = {} t.t = t; return t").size() < 300);  // a circle ends
  CHECK(Run(runner, "{ 1, nil, 3 }") == "{\"1\":1,\"3\":3}");
  CHECK(Run(runner, "mesh.tp, model, config.rope_scaling") ==
        "2 {\"modules\":7,\"parameters\":70336} {\"factor\":8.0,\"rope_type\":\"llama3\"}");
  CHECK(Run(runner, "options { a = 1 }") == "{\"a\":1}");
  CHECK(Run(runner, "string.rep('x', 10), 1/0") == "\"xxxxxxxxxx\" null");
  CHECK(Run(runner, "local t = {} for i = 1, 30000 do t[i] = i end return t").ends_with(",\"...\"]"));
  CHECK(Run(runner, "{ [{}] = 1 }") == "MS0108");  // no order that is the same everywhere
}

TEST_CASE("rules are made of a pattern and a style or a function that makes one") {
  LineRunner runner(InputsOf(2));
  CHECK(runner.MakeRule("lm_head", "colwise", {}).value().style.name == "colwise");
  CHECK(runner.MakeRule("\"lm_head\"", "rowwise { heads = 4 }", {}).value().style.heads == 4);
  CHECK(runner.MakeRule("re[[.*]]", "replicated()", {}).value().syntax == PatternSyntax::kRegex);
  CHECK(runner.MakeRule("lm_head.weight", "shard(0)", {}).value().parameter == Placement(Layout::Shard(0)));
  CHECK(!runner.MakeRule("lm_head", "42", {}).ok());
  CHECK(!runner.MakeRule("lm_head", "colwise {", {}).ok());
  CHECK(!runner.MakeRule("lm_head", "colwise {} end while true do", {}).ok());
  CHECK(Run(runner, "style") != "MS0102");  // the word is what it was
}

TEST_CASE("names go with the model, and stay when the mesh changes") {
  LineRunner runner(InputsOf(2));
  Run(runner, "kept = mesh.tp");
  LineInputs wider = InputsOf(4);
  wider.model = nullptr;
  runner.SetInputs(wider);
  CHECK(Run(runner, "mesh.tp") == "4");
  CHECK(Run(runner, "kept") == "MS0102");
  CHECK(!runner.TakeNotice().empty());
  CHECK(runner.TakeNotice().empty());
  Run(runner, "kept = mesh.tp");
  wider.mesh = MeshShape::Parse("tp=8").ValueOrThrow();
  runner.SetInputs(wider);
  CHECK(Run(runner, "kept, mesh.tp") == "4 8");
  CHECK(runner.TakeNotice().empty());
}

}  // namespace
}  // namespace moonshard
