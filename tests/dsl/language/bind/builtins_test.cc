#include "dsl/language/bind/builtins.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "engine/core/base/text.h"
#include "tests/dsl/inputs.h"

namespace moonshard {
namespace {

TEST_CASE("the environment of a plan holds the names of the table and no others") {
  // The plan walks its own environment and raises what it found.
  const Result<Plan> walk = EvaluatePlan(
      "local found = {}\n"
      "for name, value in pairs(_ENV) do\n"
      "  if type(value) == 'table' then\n"
      "    for field in pairs(value) do found[#found + 1] = name .. '.' .. field end\n"
      "  else\n"
      "    found[#found + 1] = name\n"
      "  end\n"
      "end\n"
      "error('FOUND ' .. table.concat(found, ' '))\n",
      "walk.lua", LlamaInputs(2));
  REQUIRE(!walk.ok());
  std::istringstream text(walk.diagnostics().front().message);
  std::string word;
  text >> word;
  REQUIRE(word == "FOUND");
  std::set<std::string> found;
  while (text >> word) found.insert(word);
  std::set<std::string> listed;
  for (const BuiltinInfo& info : AllBuiltins()) {
    const std::string name = info.name;
    if (name.find(':') == std::string::npos) CHECK(listed.insert(name).second);
  }
  CHECK(found == listed);
}

TEST_CASE("the methods of the table exist") {
  PlanInputs inputs = LlamaInputs(2);
  const ModuleTree model = SmallLlama();
  inputs.model = &model;
  for (const BuiltinInfo& info : AllBuiltins()) {
    const std::string name = info.name;
    const size_t colon = name.find(':');
    if (colon == std::string::npos) continue;
    const std::string text = "local f = " + name.substr(0, colon) + "." + name.substr(colon + 1) +
                             "\nreturn plan { type(f) ~= 'function' and divides(2, 1) }";
    INFO(name);
    CHECK(TextOf(EvaluatePlan(text, "method.lua", inputs)) == "plan method api=1\n");
  }
}

TEST_CASE("every name and key has one line of explanation, and the signature names what it is of") {
  for (const BuiltinInfo& info : AllBuiltins()) {
    INFO(info.name);
    const std::string signature = SignatureOf(info);
    CHECK((signature.starts_with(info.name) || signature == "layout"));
    CHECK(std::string(info.doc).size() > 5);
    CHECK(std::string(info.doc).find('\n') == std::string::npos);
  }
  for (const KeyInfo& key : AllKeys()) {
    INFO(key.table << "." << key.key);
    CHECK(std::string(key.doc).size() > 5);
    CHECK(!std::string(key.example).empty());
  }
  CHECK(SignatureOf(*FindBuiltin("shard")) ==
        "shard(dim [, { heads = integer, owner = integer, zigzag = boolean }]) -> layout");
  CHECK(SignatureOf(*FindBuiltin("string.find")) ==
        "string.find(text, pattern [, start [, plain]]) -> integer?, integer?");
  CHECK(SignatureOf(*FindBuiltin("colwise")) ==
        "colwise { [heads = integer, input = layout, output = layout] } -> style");
}

TEST_CASE("every example evaluates and every name of the language has one") {
  const ModuleTree tree = SmallLlama();
  for (const BuiltinInfo& info : AllBuiltins()) {
    const std::string example = info.example;
    INFO(info.name << ": " << example);
    if (example.empty()) {
      CHECK((std::string(info.group) == "Lua" || std::string(info.name) == "model"));
      continue;
    }
    const std::string name = info.name;
    CHECK(example.find(name.substr(name.find(':') + 1)) != std::string::npos);
    PlanInputs inputs = LlamaInputs(2);
    inputs.model = &tree;
    const Result<Plan> plan = EvaluatePlan(example, "example.lua", inputs);
    INFO(TextOf(plan));
    REQUIRE(plan.ok());
    CHECK((!plan.value().rules.empty() || plan.value().fallback));
  }
}

// A plan in which the table `o` is given to the builtin `table`, or to the key of this name.
std::string PlanWith(const std::string& table, const std::string& o) {
  if (table == "plan") return "return plan " + o;
  if (table == "at") return "return plan { at(\"lm_head\", replicated(), " + o + ") }";
  if (table == "shard") return "return plan { at(\"lm_head.weight\", shard(0, " + o + ")) }";
  if (table == "packed") return "return plan { at(\"lm_head.weight\", packed(0, { 64, 64 }, " + o + ")) }";
  if (table == "route" || table == "exchange" || table == "ring") {
    return "return plan { at(\"lm_head\", style { " + table + " = " + o + " }) }";
  }
  if (table == "prefetch") return "return plan { fsdp { prefetch = " + o + " } }";
  if (table == "fsdp" || table == "ddp" || table == "recompute" || table == "precision" || table == "lora") {
    return "return plan { " + table + " " + o + " }";
  }
  return "return plan { at(\"lm_head\", " + table + " " + o + ") }";
}

// The table { key = value } with the other keys that this one requires.
std::string TableWith(const KeyInfo& key, const std::string& value) {
  if (key.key == kPositional) return "{ " + value + " }";
  std::string out = "{ " + std::string(key.key) + " = " + value;
  if (std::string(key.table) == "lora" && std::string(key.key) != "at") out += ", at = \"lm_head\"";
  if (std::string(key.table) == "ring" && std::string(key.key) != "heads") out += ", heads = 8";
  if (std::string(key.table) == "route" || std::string(key.table) == "exchange") {
    for (const KeyInfo& other : KeysOf(key.table)) {
      const std::string name = other.key;
      const bool optional = name == "capacity" || name == "listed";
      if (name != key.key && !optional) out += ", " + name + " = " + other.example;
    }
  }
  return out + " }";
}

TEST_CASE("every key takes its example and no value of another type") {
  for (const KeyInfo& key : AllKeys()) {
    INFO(key.table << "." << key.key);
    const Result<Plan> good =
        EvaluatePlan(PlanWith(key.table, TableWith(key, key.example)), "good.lua", LlamaInputs(2));
    INFO(TextOf(good));
    CHECK(good.ok());
    const Result<Plan> bad =
        EvaluatePlan(PlanWith(key.table, TableWith(key, "function() end")), "bad.lua", LlamaInputs(2));
    CHECK(!bad.ok());
  }
}

TEST_CASE("a key with its default is the same as none") {
  size_t compared = 0;
  for (const KeyInfo& key : AllKeys()) {
    const std::string table = key.table;
    if (std::string(key.fallback).empty()) continue;
    ++compared;
    INFO(table << "." << key.key << " = " << key.fallback);
    const Result<Plan> with = EvaluatePlan(PlanWith(table, TableWith(key, key.fallback)), "t.lua", LlamaInputs(2));
    const Result<Plan> without =
        EvaluatePlan(PlanWith(table, table == "lora" ? "{ at = \"lm_head\" }" : "{}"), "t.lua", LlamaInputs(2));
    INFO(TextOf(with));
    REQUIRE(with.ok());
    CHECK(with.value().ToText() == TextOf(without));
  }
  CHECK(compared > 20);
}

TEST_CASE("an integer key refuses what lies beyond its bounds") {
  for (const KeyInfo& key : AllKeys()) {
    for (const auto& [bound, beyond] : {std::pair(key.minimum, key.minimum - (key.minimum != kNoMinimum ? 1 : 0)),
                                        std::pair(key.maximum, key.maximum + (key.maximum != kNoMaximum ? 1 : 0))}) {
      if (bound == beyond) continue;
      INFO(key.table << "." << key.key << " = " << beyond);
      const std::string plan = PlanWith(key.table, TableWith(key, std::to_string(beyond)));
      CHECK(!EvaluatePlan(plan, "bound.lua", LlamaInputs(2)).ok());
    }
  }
}

TEST_CASE("every table of keys belongs to a builtin or to a key") {
  std::set<std::string> tables;
  std::set<std::string> used;
  const auto use = [&](const std::string& types) {
    for (const std::string& type : Split(types, '|')) {
      if (type.ends_with("_keys")) used.insert(type.substr(0, type.size() - 5));
    }
  };
  for (const KeyInfo& key : AllKeys()) {
    tables.insert(key.table);
    use(key.type);
  }
  for (const BuiltinInfo& info : AllBuiltins()) {
    for (const std::string& form : Split(info.type, '\n')) {
      for (const TypeParameter& parameter : ParseType(form).parameters) use(parameter.type);
    }
  }
  CHECK(used == tables);
  CHECK(std::ranges::is_sorted(AllKeys(), {}, [](const KeyInfo& key) { return std::string(key.table); }));
}

TEST_CASE("types are read part by part") {
  const FunctionType call =
      ParseType("fun(a: table<string, integer>, b?: fun(x: any, y: any): boolean, ...: any): any, any");
  REQUIRE(call.parameters.size() == 3);
  CHECK(call.parameters[0].type == "table<string, integer>");
  CHECK(call.parameters[1].name == "b");
  CHECK(call.parameters[1].optional);
  CHECK(call.parameters[1].type == "fun(x: any, y: any): boolean");
  CHECK(call.parameters[2].name == "...");
  CHECK(call.result == "any, any");
  CHECK(ParseType("fun()").result.empty());
  CHECK(!ParseType("layout").is_function);
}

}  // namespace
}  // namespace moonshard
