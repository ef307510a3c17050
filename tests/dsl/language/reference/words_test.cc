// The reference's tables against the language: every name, every key of every table, every example.
#include "dsl/language/reference/words.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "dsl/language/bind/names.h"
#include "engine/core/base/text.h"
#include "tests/dsl/inputs.h"

namespace moonshard {
namespace {

TEST_CASE("every name has a type, in the order of the names") {
  std::vector<std::string> names;
  for (const NameInfo& info : AllNames()) names.emplace_back(info.name);
  std::vector<std::string> words;
  for (const WordInfo& word : AllWords()) words.emplace_back(word.name);
  CHECK(words == names);
}

TEST_CASE("every example evaluates and every word of the language has one") {
  const ModuleTree tree = SmallLlama();
  for (const WordInfo& word : AllWords()) {
    const std::string example = word.example;
    INFO(word.name << ": " << example);
    if (example.empty()) {
      CHECK((std::string(word.group) == "Lua" || std::string(word.name) == "model"));
      continue;
    }
    const std::string name = word.name;
    CHECK(example.find(name.substr(name.find(':') + 1)) != std::string::npos);
    PlanInputs inputs = LlamaInputs(2);
    inputs.model = &tree;
    const Result<Plan> plan = EvaluatePlan(example, "example.lua", inputs);
    INFO(TextOf(plan));
    REQUIRE(plan.ok());
    CHECK((!plan.value().rules.empty() || plan.value().fallback));
  }
}

// A call of the word with the table `o`.
std::string CallOf(const std::string& word, const std::string& o) {
  if (word == "plan") return "return plan " + o;
  if (word == "at") return "return plan { at(\"lm_head\", replicated(), " + o + ") }";
  if (word == "shard") return "return plan { at(\"lm_head.weight\", shard(0, " + o + ")) }";
  if (word == "packed") return "return plan { at(\"lm_head.weight\", packed(0, { 64, 64 }, " + o + ")) }";
  if (word == "route") return "return plan { at(\"lm_head\", style { route = " + o + " }) }";
  if (word == "fsdp" || word == "ddp" || word == "recompute" || word == "precision")
    return "return plan { " + word + " " + o + " }";
  return "return plan { at(\"lm_head\", " + word + " " + o + ") }";
}

// Keys by the word that takes them.
std::map<std::string, std::set<std::string>> KeysByWord() {
  std::map<std::string, std::set<std::string>> out;
  for (const KeyInfo& key : AllKeys()) {
    CHECK(std::string(key.table) == std::string(key.word) + "_keys");
    CHECK(out[key.word].insert(key.key).second);
  }
  return out;
}

TEST_CASE("the keys of a table are those that its word takes") {
  for (const auto& [word, keys] : KeysByWord()) {
    const Result<Plan> plan = EvaluatePlan(CallOf(word, "{ zzzzzzzzzzzzzzzz = 1 }"), "keys.lua", LlamaInputs(2));
    INFO(word << ": " << TextOf(plan));
    REQUIRE(!plan.ok());
    const auto unknown = std::ranges::find(plan.diagnostics(), Finding::kUnknownKey, &Diagnostic::finding);
    REQUIRE(unknown != plan.diagnostics().end());
    const std::string head = "one of: ";
    REQUIRE(unknown->help.starts_with(head));
    const std::vector<std::string> listed = Split(unknown->help.substr(head.size()), ',');
    std::set<std::string> taken;
    for (const std::string& key : listed) taken.insert(key.substr(key.find_first_not_of(' ')));
    CHECK(taken == keys);
  }
}

TEST_CASE("every word that takes a table of keys has its keys in the reference") {
  std::set<std::string> tables;
  for (const KeyInfo& key : AllKeys()) tables.insert(key.table);
  std::set<std::string> used = {"route_keys"};  // within style's
  for (const WordInfo& word : AllWords()) {
    for (const std::string& form : Split(word.type, '\n')) {
      for (const WordParameter& parameter : ParseType(form).parameters) {
        if (parameter.type.ends_with("_keys")) used.insert(parameter.type);
      }
    }
  }
  CHECK(used == tables);
}

TEST_CASE("a key takes a value of its type and no other") {
  const std::map<std::string, std::string> values = {{"integer", "2"},
                                                     {"boolean", "true"},
                                                     {"string", "\"x\""},
                                                     {"layout", "replicate"},
                                                     {"string[]", "{ \"x\" }"},
                                                     {"\"masked\"", "\"masked\""},
                                                     {"\"mean\"|\"sum\"", "\"sum\""},
                                                     {"table<string, layout>", "{ weight = replicate }"}};
  size_t tried = 0;
  for (const KeyInfo& key : AllKeys()) {
    const std::string word = key.word;
    const auto value = values.find(key.type);
    if (value == values.end() || word == "route" || (word == "plan" && std::string(key.key) == "api")) continue;
    ++tried;
    const std::string begin = "{ " + std::string(key.key) + " = ";
    const Result<Plan> good = EvaluatePlan(CallOf(word, begin + value->second + " }"), "good.lua", LlamaInputs(2));
    INFO(word << "." << key.key << ": " << TextOf(good));
    CHECK(good.ok());
    const Result<Plan> bad = EvaluatePlan(CallOf(word, begin + "function() end }"), "bad.lua", LlamaInputs(2));
    CHECK(!bad.ok());
  }
  CHECK(tried >= 24);
}

TEST_CASE("types are read part by part") {
  const WordSignature call =
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
