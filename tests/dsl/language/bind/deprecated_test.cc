// A name that was given another one works on, with a warning that says the new one: planted ones, for this version has
// its own list.
#include "dsl/language/bind/builtins.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

#include "tests/dsl/inputs.h"

namespace moonshard {
namespace {

constexpr std::array<DeprecatedName, 5> kPlanted = {{{"column_wise", "colwise", "0.2"},
                                                     {"colwise.in_layout", "input", "0.2"},
                                                     {"shard.n_heads", "heads", "0.3"},
                                                     {"fsdp.accumulate=pieces", "shards", "0.2"},
                                                     {"fsdp.accumulate=whole", "full", "0.2"}}};

PlanInputs Planted() {
  PlanInputs inputs = LlamaInputs(2);
  inputs.deprecated = kPlanted;
  return inputs;
}

std::string Said(const std::string& text) { return ToText(EvaluatePlan(text, "t.lua", Planted()).diagnostics()); }

std::string PlanOf(const std::string& text) {
  const Result<Plan> plan = EvaluatePlan(text, "t.lua", Planted());
  INFO(ToText(plan.diagnostics()));
  REQUIRE(plan.ok());
  return plan.value().ToText();
}

TEST_CASE("a deprecated word is the new one, with a warning at its place") {
  CHECK(PlanOf("return plan { at(\"a\", column_wise {}) }") == PlanOf("return plan { at(\"a\", colwise {}) }"));
  CHECK(Said("return plan { at(\"a\", column_wise {}) }") ==
        "t.lua:1: warning[MS0117]: 'column_wise' is now called 'colwise'\n"
        "    1 | return plan { at(\"a\", column_wise {}) }\n"
        "      |                       ^^^^^^^^^^^\n"
        "    help: renamed in moonshard 0.2; a later version removes the old name\n");
}

TEST_CASE("a deprecated key is the new one, with a warning at its place") {
  CHECK(PlanOf("return plan { at(\"a\", colwise { in_layout = shard(1) }) }") ==
        PlanOf("return plan { at(\"a\", colwise { input = shard(1) }) }"));
  CHECK(PlanOf("return plan { at(\"a\", shard(0, { n_heads = 8 })) }") ==
        PlanOf("return plan { at(\"a\", shard(0, { heads = 8 })) }"));
  CHECK(Said("return plan { at(\"a\", colwise { in_layout = shard(1) }) }")
            .find("warning[MS0117]: 'in_layout' of 'colwise' is now called 'input'") != std::string::npos);
  // Where both stand there the new one counts.
  CHECK(PlanOf("return plan { at(\"a\", colwise { in_layout = shard(1), input = shard(0) }) }") ==
        PlanOf("return plan { at(\"a\", colwise { input = shard(0) }) }"));
}

TEST_CASE("what is deprecated nowhere is unknown, and without a plant the planted names are") {
  CHECK(Said("return plan { at(\"a\", rowwise { in_layout = shard(1) }) }").find("MS0103") != std::string::npos);
  CHECK(Said("return plan { at(\"a\", string.column_wise) }").find("MS0103") != std::string::npos);
  CHECK(!EvaluatePlan("return plan { at(\"a\", column_wise {}) }", "t.lua", LlamaInputs(2)).ok());
}

TEST_CASE("a deprecated value is the new one, with a warning at its place") {
  const auto text = [](const std::string& how) { return "return plan { fsdp { accumulate = \"" + how + "\" } }"; };
  for (const auto& [old, now] : {std::pair("pieces", "shards"), std::pair("whole", "full")}) {
    const Result<Plan> plan = EvaluatePlan(text(old), "t.lua", Planted());
    REQUIRE(plan.ok());
    CHECK(plan.value().ToText() == EvaluatePlan(text(now), "t.lua", LlamaInputs(2)).value().ToText());
    const std::string warning =
        "t.lua:1: warning[MS0117]: value \"" + std::string(old) + "\" of 'accumulate' is now \"" + now;
    CHECK(ToText(plan.diagnostics()).starts_with(warning));
  }
}

TEST_CASE("takes accepts old names of keys and values of a function of a plan, each with a warning at its place") {
  const std::string mine =
      "local function mine(o)\n  o = takes(\"mine\", o, { heads = \"integer\", n_heads = \"now heads\",\n"
      "    how = \"string\", [\"how=whole\"] = \"now full\" })\n"
      "  return colwise { heads = o.how ~= \"whole\" and o.heads or 1 }\nend\n";
  const auto with = [&](const std::string& keys) { return mine + "return plan { at(\"a\", mine { " + keys + " }) }"; };
  const std::string expected = PlanOf(with("heads = 8"));
  CHECK(PlanOf(with("n_heads = 8")) == expected);
  CHECK(PlanOf(with("n_heads = 4, heads = 8")) == expected);  // the new name has precedence
  CHECK(PlanOf(with("how = \"whole\", heads = 8")) == expected);
  CHECK(Said(with("n_heads = 8")) ==
        "t.lua:6: warning[MS0117]: 'n_heads' of 'mine' is now called 'heads'\n"
        "    6 | return plan { at(\"a\", mine { n_heads = 8 }) }\n"
        "      |                              ^^^^^^^\n"
        "    help: a later version removes the old name\n");
  CHECK(Said(with("how = \"whole\", heads = 8"))
            .starts_with("t.lua:6: warning[MS0117]: value \"whole\" of 'how' is now \"full\"\n"));
  CHECK(Said(with("heads = 8, how = \"full\"")).empty());
  CHECK(Said(with("n_heads = true")).find("MS0107") != std::string::npos);  // of the new key's type
  CHECK(Said("local o = takes(\"mine\", {}, { a = \"now b\" }) return plan { at(\"a\", colwise {}) }")
            .find("'a' has an unknown type") != std::string::npos);  // there is no b
}

TEST_CASE("options accepts old names and old values, each with a warning") {
  const std::string declared =
      "local opt <const> = options({ all = false, how = \"\" }, { old_all = \"all\", [\"how=no\"] = \"\" })\n"
      "return plan { at(\"a\", colwise { heads = opt.all and 8 or 4 }), at(\"b\", opt.how == \"\" and colwise {} or "
      "rowwise {}) }";
  const auto with = [&](const std::string& name, const JsonValue& value) {
    PlanInputs inputs = LlamaInputs(2);
    inputs.options[name] = value;
    return EvaluatePlan(declared, "t.lua", inputs);
  };
  const Result<Plan> now = with("all", true);
  INFO(TextOf(now));
  REQUIRE(now.ok());
  const Result<Plan> old = with("old_all", "true");
  CHECK(ToText(now.diagnostics()).empty());
  CHECK(TextOf(old) == TextOf(now));
  CHECK(TextOf(old) != TextOf(with("all", false)));
  CHECK(ToText(old.diagnostics()) ==
        "t.lua:1: warning[MS0117]: option 'old_all' is now called 'all'\n"
        "    1 | local opt <const> = options({ all = false, how = \"\" }, { old_all = \"all\", [\"how=no\"] = \"\" })\n"
        "      |                               ^^^\n"
        "    help: a later version removes the old name\n");
  CHECK(TextOf(with("how", "no")) == TextOf(with("how", "")));
  CHECK(TextOf(with("how", "no")) != TextOf(with("how", "x")));
  CHECK(ToText(with("how", "no").diagnostics())
            .starts_with("t.lua:1: warning[MS0117]: value 'no' of option 'how' is now ''\n"));
  CHECK(ToText(with("old_al", true).diagnostics()).find("MS0104") != std::string::npos);
  // Of a plan that extends one with the new name.
  CHECK(Said("local opt <const> = options { whole_attention = true } return plan { extends \"phi3\" }")
            .starts_with("t.lua:1: warning[MS0117]: option 'whole_attention' is now called 'all_heads'\n"));
  CHECK(Said("options({}, 1) return plan { at(\"a\", colwise {}) }").find("must be a table of renamed options") !=
        std::string::npos);
  CHECK(Said("options({}, { a = 1 }) return plan { at(\"a\", colwise {}) }").find("written as old = \"new\"") !=
        std::string::npos);
}

TEST_CASE("old names of the stdlib are accepted for this version") {
  const auto text = [](const std::string& key) {
    return "local transformer <const>, experts <const> = require \"transformer\", require \"experts\"\n"
           "local stream <const> = transformer.stream { sequence_parallel = false, loss_parallel = false, stable = "
           "false }\n"
           "return plan { lenient = true, transformer.attention(\"model.layers.*.self_attn\", stream, { " +
           key + " = true }) }";
  };
  CHECK(PlanOf(text("whole")) == PlanOf(text("all_heads")));
  CHECK(Said(text("whole")).starts_with("t.lua:3: warning[MS0117]: 'whole' of 'attention' is now called 'all_heads'"));
}

TEST_CASE("every deprecated name of this version has a replacement that exists, and does not exist itself") {
  for (const DeprecatedName& name : DeprecatedNames()) {
    const std::string old = name.name;
    INFO(old);
    const size_t dot = old.find('.');
    const size_t equals = old.find('=');
    const std::string table = old.substr(0, dot);
    const std::string key = dot == std::string::npos ? "" : old.substr(dot + 1, equals - dot - 1);
    if (equals != std::string::npos) {
      const std::vector<std::string> literals = LiteralsOf(KeyOf(table, key).type);
      CHECK(std::ranges::count(literals, name.replacement) == 1);
      CHECK(std::ranges::count(literals, old.substr(equals + 1)) == 0);
    } else if (!key.empty()) {
      const std::vector<std::string> keys = KeyNames(table);
      CHECK(std::ranges::count(keys, name.replacement) == 1);
      CHECK(std::ranges::count(keys, key) == 0);
    } else {
      CHECK(FindBuiltin(old) == nullptr);
      CHECK(FindBuiltin(name.replacement) != nullptr);
    }
  }
}

}  // namespace
}  // namespace moonshard
