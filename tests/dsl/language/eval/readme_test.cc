// The claims of dsl/README.md about the language: its examples evaluate, its tables of keys are those of the language,
// and its numbers and lists are what the code has.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "engine/core/base/text.h"
#include "engine/plan/match/pattern.h"
#include "tests/dsl/inputs.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"

namespace moonshard {
namespace {

std::string Page() { return ReadWholeFile(test::SourcePath("dsl/README.md")); }

// The page as one line, so that a sentence is found whatever its line breaks.
std::string Prose() {
  std::string page = Page();
  std::ranges::replace(page, '\n', ' ');
  return page;
}

// The texts between backquotes of the first column, of the table after `heading`.
std::set<std::string> FirstColumn(const std::string& heading) {
  const std::string page = Page();
  std::set<std::string> out;
  bool table = false;
  for (const std::string& line : Split(page.substr(page.find(heading)), '\n')) {
    if (table && !line.starts_with("|")) break;
    table = line.starts_with("|");
    if (!line.starts_with("| `")) continue;
    const std::string cell = line.substr(2, line.find(" |", 2) - 2);
    for (const std::string& part : Split(cell, '`')) {
      if (part.find_first_not_of(", ") != std::string::npos) out.insert(part);
    }
  }
  return out;
}

TEST_CASE("the examples of the language's page are plans") {
  const std::string page = Page();
  const std::string open = "```lua\n";
  const ModuleTree tree = SmallLlama();
  int examples = 0;
  for (size_t at = 0; (at = page.find(open, at)) != std::string::npos; ++examples) {
    at += open.size();
    const std::string text = page.substr(at, page.find("```", at) - at);
    PlanInputs inputs = LlamaInputs(2);
    inputs.model = &tree;
    const Result<Plan> plan = EvaluatePlan(text, "example.lua", inputs);
    INFO(text << TextOf(plan));
    CHECK(plan.ok());
    CHECK((plan.ok() && !plan.value().rules.empty()));
  }
  CHECK(examples == 16);
}

TEST_CASE("the page's tables of keys have the keys of the language") {
  for (const auto& [heading, table] : {std::pair("## Styles", "style"), std::pair("Keys of `fsdp`", "fsdp"),
                                       std::pair("Keys of `ddp`", "ddp"), std::pair("## Precision", "precision")}) {
    const std::vector<std::string> keys = KeyNames(table);
    INFO(heading);
    CHECK(FirstColumn(heading) == std::set<std::string>(keys.begin(), keys.end()));
  }
}

TEST_CASE("the page names every layout and every style of stdlib") {
  const std::string page = Page();
  for (const BuiltinInfo& info : AllBuiltins()) {
    const std::string result = ResultOf(info);
    const std::string name = info.name;
    if ((result != "layout" && result != "style") || name == "style") continue;
    INFO(name);
    CHECK((page.find("`" + name + "`") != std::string::npos || page.find("`" + name + "(") != std::string::npos));
  }
}

TEST_CASE("the page's names that do not exist do not exist") {
  const std::string prose = Prose();
  const size_t begin = prose.find("There is no ");
  const std::vector<std::string> parts = Split(prose.substr(begin, prose.find(". ", begin) - begin), '`');
  REQUIRE(parts.size() >= 19);
  for (size_t i = 1; i < parts.size(); i += 2) {
    INFO(parts[i]);
    CHECK(FindBuiltin(parts[i]) == nullptr);
    CHECK(!EvaluatePlan("return plan { at(\"a\", replicated()), " + parts[i] + " }", "t.lua", LlamaInputs(2)).ok());
  }
}

TEST_CASE("the page's limits are those of an evaluation") {
  const ScriptLimits limits;
  const std::string prose = Prose();
  for (const std::string& claim :
       {std::to_string(limits.steps / 1'000'000) + " million steps", std::to_string(limits.time.count()) + " ms of CPU",
        std::to_string(limits.memory_bytes >> 20) + " MiB", "patterns of " + std::to_string(kMostPatternBytes)}) {
    INFO(claim);
    CHECK(prose.find(claim) != std::string::npos);
  }
  CHECK(prose.find("10,000 rules") != std::string::npos);
  const std::string many =
      "local rules = {}\nfor i = 1, N do rules[i] = at('a' .. i, replicated()) end\nreturn plan(rules)";
  PlanInputs inputs = LlamaInputs(2);
  inputs.limits.time = std::chrono::seconds(60);  // a slow machine is none of the page's claims
  const auto with = [&](const std::string& n) {
    return EvaluatePlan("local N <const> = " + n + "\n" + many, "many.lua", inputs).ok();
  };
  CHECK(with("10000"));
  CHECK(!with("10001"));
}

TEST_CASE("the page counts the styles of Hugging Face, and all of them run") {
  PlanInputs inputs = LlamaInputs(2);
  const Result<Plan> counted = EvaluatePlan(
      "local hf <const>, rules, n = require 'hugging_face', {}, 0\n"
      "for name, value in pairs(hf) do\n"
      "  if type(value) == 'style' then n = n + 1 rules[n] = at(name, value) end\n"
      "end\n"
      "return plan { rules }",
      "count.lua", inputs);
  REQUIRE(counted.ok());
  const std::vector<Rule>& rules = counted.value().rules;
  CHECK(Prose().find("has the " + std::to_string(rules.size()) + " styles that transformers") != std::string::npos);
  // The model's config lacks the one field that a style requires.
  for (const Rule& rule : rules) {
    INFO(rule.pattern);
    CHECK(rule.style.missing.empty() == (rule.pattern != "mla_kv_a_proj"));
    if (rule.pattern == "mla_kv_a_proj") CHECK(rule.style.missing == "config.json has no qk_rope_head_dim");
  }
  inputs.config = ParseJson(R"({"qk_rope_head_dim": 8})", "config.json").ValueOrThrow();
  const Result<Plan> latent = EvaluatePlan(
      "local hf <const> = require 'hugging_face' return plan { at('a', hf.mla_kv_a_proj) }", "latent.lua", inputs);
  REQUIRE(latent.ok());
  CHECK(latent.value().rules.front().style.missing.empty());
}

// The texts between backquotes of engine/README.md between two others.
std::set<std::string> QuotedBetween(const std::string& begin, const std::string& end) {
  const std::string page = ReadWholeFile(test::SourcePath("engine/README.md"));
  const size_t from = page.find(begin);
  const std::vector<std::string> parts = Split(page.substr(from, page.find(end, from) - from), '`');
  std::set<std::string> out;
  for (size_t i = 1; i < parts.size(); i += 2) out.insert(parts[i]);
  return out;
}

TEST_CASE("the rope types of engine/README.md are those of the reference models") {
  const std::string source = ReadWholeFile(test::SourcePath("engine/models/rope_config.cc"));
  std::set<std::string> supported;
  for (size_t at = 0; (at = source.find("\", RopeConfig::Type::k", at)) != std::string::npos; ++at) {
    const size_t open = source.rfind('"', at - 1);
    supported.insert(source.substr(open + 1, at - open - 1));
  }
  CHECK(supported.size() > 3);
  CHECK(QuotedBetween("rope types other than", "; dropout") == supported);
}

}  // namespace
}  // namespace moonshard
