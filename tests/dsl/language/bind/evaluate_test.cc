// What the words make: a plan's text against what it must become.
#include <catch2/catch.hpp>

#include "tests/dsl/inputs.h"

namespace moonshard {
namespace {

// divides(2, 1) is an error: a plan with `wrong and divides(2, 1)` evaluates where the condition `wrong` is false.

// The text of a plan with one entry, without the plan's own line and the place.
std::string Entry(const std::string& entry, const PlanInputs& inputs = LlamaInputs(2)) {
  std::string text = TextOf(EvaluatePlan("return plan { " + entry + " }", "t.lua", inputs));
  const std::string head = "plan t api=1\n";
  if (!text.starts_with(head)) return text;
  std::string rest = text.substr(head.size());
  const std::string place = "t.lua:1: ";
  for (size_t at; (at = rest.find(place)) != std::string::npos;) rest.erase(at, place.size());
  return rest;
}

TEST_CASE("layouts") {
  const std::pair<const char*, const char*> cases[] = {
      {"replicate", "replicate"},
      {"shared", "shared"},
      {"partial", "partial"},
      {"shard(0)", "shard(0)"},
      {"shard(-1)", "shard(-1)"},
      {"shard(4 / 2)", "shard(2)"},
      {"shard(0, { heads = 8 })", "shard(0,heads=8)"},
      {"packed(0, { 64, 32, 32 })", "packed(0,[64,32,32])"},
      {"packed(0, { 64, 32, 32 }, { heads = { 8, 4, 4 } })", "packed(0,[64:heads=8,32:heads=4,32:heads=4])"},
      {"on(\"tp\", shard(1))", "shard(1)"},
      {"on(\"dp\", shard(0))", "{dp_shard: shard(0)}"},
      {"on { tp = shard(1), dp_shard = shard(0) }", "{dp_shard: shard(0), tp: shard(1)}"},
  };
  for (const auto& [written, meant] : cases) {
    INFO(written);
    CHECK(Entry("at(\"w\", " + std::string(written) + ")") == "at(\"w\") " + std::string(meant) + "\n");
    CHECK(Entry("tostring(" + std::string(written) + ") ~= \"" + meant + "\" and divides(2, 1)") == "");
    CHECK(Entry(std::string(written) + " ~= " + written + " and divides(2, 1)") == "");
  }
  CHECK(Entry("(shard(0) == shard(1) or shard(0) == replicate or shard(0) == 0) and divides(2, 1)") == "");
}

TEST_CASE("rules") {
  CHECK(Entry("at(\"a\", replicated())") == "at(\"a\") replicated\n");
  CHECK(Entry("at(re\"a\\\\d+\", replicated())") == "at(re\"a\\d+\") replicated\n");
  CHECK(Entry("at(\"a\", replicated(), { optional = true })") == "at(\"a\") replicated optional\n");
  CHECK(Entry("optional(at(\"a\", replicated()))") == "at(\"a\") replicated optional\n");
  CHECK(Entry("optional { at(\"a\", replicated()), { at(\"b\", replicated()) } }") ==
        "at(\"a\") replicated optional\nat(\"b\") replicated optional\n");
  CHECK(Entry("{ at(\"a\", replicated()), { false, at(\"b\", replicated()) } }, nil, at(\"c\", replicated())") ==
        "at(\"a\") replicated\nat(\"b\") replicated\nat(\"c\") replicated\n");
  CHECK(Entry("default(replicated())") == "default replicated\n");
  CHECK(Entry("divides(mesh.tp, 8), divides(mesh.pp, 7)") == "");
}

TEST_CASE("fsdp at level 0 is ddp, whatever its other keys") {
  const std::string ddp = Entry("ddp {}");
  CHECK(ddp.starts_with("ddp"));
  CHECK(Entry("fsdp { level = 0 }") == ddp);
  CHECK(
      Entry(
          "fsdp { level = 0, wrap = \"a\", reshard = true, prefetch = 2, accumulate = \"shards\", offload = true }") ==
      ddp);
}

TEST_CASE("sizes that do not fit are named with those that do") {
  CHECK(Entry("fits(2, 8), fits(8, 2), fits(3, 3), fits(1, 7)") == "");
  CHECK_THAT(Entry("fits(4, 6, 'key heads')"),
             Catch::Contains("error[MS0113]: key heads: 6 is neither a multiple nor a divisor of 4") &&
                 Catch::Contains("declared: fits(4, 6)") && Catch::Contains("required: one of 1, 2, 3, 6, 12"));
  CHECK_THAT(Entry("divides(4, 6, 'query heads')"),
             Catch::Contains("query heads: 4 does not divide 6") && Catch::Contains("required: one of 1, 2, 3, 6\n"));
  CHECK_THAT(Entry("fits(0, 6)"), Catch::Contains("fits: the size must be a positive integer"));
  CHECK_THAT(Entry("fits(2, 6, 7)"), Catch::Contains("fits: the third argument must be a string"));
}

TEST_CASE("questions about the model") {
  ModuleTree tree = SmallLlama();
  tree.Add("model.layers.0.mlp", "", {{"scale", {1}, DType::kF32, false}, {"bias", {1}, DType::kF32, false}});
  PlanInputs inputs = LlamaInputs(2);
  inputs.model = &tree;
  for (const std::string condition :
       {"model:has('lm_head') and model:has('lm_head.weight') and not model:has('lm_haed')",
        "#model:find('model.layers.*.mlp.{gate,up}_proj') == 4", "model:shape('lm_head.weight')[1] == 331",
        "table.concat(model:parameters('model.layers.0.mlp'), ' ') == 'bias scale'",
        "#model:parameters('model.layers.1.mlp') == 0"}) {
    INFO(condition);
    CHECK(Entry("not (" + condition + ") and divides(2, 1)", inputs) == "");
  }
}

TEST_CASE("styles") {
  CHECK(Entry("at(\"a\", style { name = \"mine\", heads = 4, params = { weight = shard(0) },"
              " kinds = { Embedding = { weight = shard(1) } }, inputs = { false, { replicate, shared } },"
              " outputs = { { shard(-1), replicate } }, after = { \"bias\" }, lookup = \"masked\" })") ==
        "at(\"a\") mine params={weight: shard(0)} params(Embedding)={weight: shard(1)} inputs=[-, replicate -> shared]"
        " outputs=[shard(-1) -> replicate] after=[bias] lookup=masked heads=4\n");
  CHECK(Entry("at(\"a\", prepare_input { { shard(1), shared }, false, { replicate, shared } })") ==
        "at(\"a\") prepare_input inputs=[shard(1) -> shared, -, replicate -> shared]\n");
  CHECK(Entry("at(\"a\", prepare_output { false, { partial, replicate } })") ==
        "at(\"a\") prepare_output outputs=[-, partial -> replicate]\n");
  CHECK(Entry("at(\"a\", sequence_parallel { dim = 2 })") ==
        "at(\"a\") sequence_parallel params={bias: shared, weight: shared} inputs=[shard(2) -> shard(2)] "
        "outputs=[shard(2) -> shard(2)]\n");
  CHECK(Entry("at(\"a\", rowwise())") == Entry("at(\"a\", rowwise {})"));
}

TEST_CASE("config and mesh") {
  const char* good[] = {
      "config.num_attention_heads == 8",
      "config.rope_scaling.factor == 8.0",
      "config.sliding_window == nil",
      "config:get(\"sliding_window\", 5) == 5",
      "config:get(\"no_such_field\") == nil",
      "config.rope_scaling:get(\"factor\", 1) == 8.0",
      "#config.layer_types == 2 and config.layer_types[2] == \"sliding\" and config.layer_types[3] == nil",
      "type(config) == \"config\" and config.rope_scaling == config.rope_scaling",
      "mesh.tp == 2 and mesh.dp == 1 and mesh.cp == 1 and mesh.dp_replicate == 1",
      "not config.tie_word_embeddings",
  };
  for (const char* condition : good) {
    INFO(condition);
    CHECK(Entry("not (" + std::string(condition) + ") and divides(2, 1)") == "");
  }
  CHECK(TextOf(EvaluatePlan("local t = {}\n"
                            "for i, kind in ipairs(config.layer_types) do t[#t + 1] = i .. kind end\n"
                            "for key in pairs(config.rope_scaling) do t[#t + 1] = key end\n"
                            "return plan { at(table.concat(t, \".\"), replicated()) }",
                            "t.lua", LlamaInputs(2))) ==
        "plan t api=1\nt.lua:4: at(\"1full.2sliding.factor.rope_type\") replicated\n");
}

TEST_CASE("options take what is given in their declared type") {
  PlanInputs inputs = LlamaInputs(2);
  inputs.options = {{"flag", "true"}, {"size", "12"}, {"scale", 2}, {"name", "7"}};
  CHECK(
      TextOf(EvaluatePlan("local o = options { flag = false, size = 1, scale = 0.5, name = \"x\", other = 3 }\n"
                          "return plan { not (o.flag == true and o.size == 12 and math.type(o.scale) == \"float\" and\n"
                          "  o.scale == 2 and o.name == \"7\" and o.other == 3) and divides(2, 1) }",
                          "t.lua", inputs)) == "plan t api=1\n");
}

TEST_CASE("an extending plan's options reach the plan below it") {
  PlanInputs inputs = LlamaInputs(2);
  const std::string text =
      "options { sequence_parallel = true }\nreturn plan { extends \"llama\", at(\"lm_head\", colwise {}) }";
  const Result<Plan> plan = EvaluatePlan(text, "mine.lua", inputs);
  REQUIRE(plan.ok());
  CHECK(plan.value().rules.front().level == 0);
  CHECK(plan.value().rules.front().pattern == "lm_head");
  CHECK(plan.value().rules[1].level == 1);
  CHECK(plan.value().rules[1].style.outputs.at(0)->to == Placement(Layout::Shard(1)));
  inputs.options = {{"sequence_parallel", false}};
  CHECK(EvaluatePlan(text, "mine.lua", inputs).value().rules[1].style.outputs.at(0)->to == Placement());
}

TEST_CASE("a rule remembers its own line, also in a list made by a function of stdlib or of the plan") {
  const Result<Plan> plan = EvaluatePlan(
      "local function block(p)\n"
      "  return { at(p .. \".q\",\n"
      "              colwise {}), at(p .. \".o\", rowwise {}) }\n"
      "end\n"
      "return plan {\n"
      "  block \"a\",\n"
      "  at(\"m\",\n"
      "     colwise {}),\n"
      "}\n",
      "t.lua", LlamaInputs(2));
  REQUIRE(plan.ok());
  CHECK(plan.value().rules[0].source.line == 2);
  CHECK(plan.value().rules[1].source.line == 3);
  CHECK(plan.value().rules[2].source.line == 7);
  CHECK(plan.value().rules[2].source.text == "  at(\"m\",");
  CHECK(plan.value().rules[2].source.column == 7);
}

}  // namespace
}  // namespace moonshard
