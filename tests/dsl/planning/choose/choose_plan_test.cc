#include "dsl/planning/choose/choose_plan.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/dsl/inputs.h"

namespace moonshard {
namespace {

using Catch::Contains;

// One decoder layer under the usual names, with a head of 96 rows.
ModuleTree Decoder() {
  ModuleTree tree;
  const auto add = [&](const std::string& path, std::vector<int64_t> shape) {
    tree.Add(path, "", {{"weight", std::move(shape), DType::kF32, false}});
  };
  add("model.embed_tokens", {96, 64});
  for (const std::string name : {"q_proj", "o_proj"}) add("model.layers.0.self_attn." + name, {64, 64});
  for (const std::string name : {"k_proj", "v_proj"}) add("model.layers.0.self_attn." + name, {32, 64});
  for (const std::string name : {"gate_proj", "up_proj"}) add("model.layers.0.mlp." + name, {128, 64});
  add("model.layers.0.mlp.down_proj", {64, 128});
  for (const std::string name : {"input_layernorm", "post_attention_layernorm"}) add("model.layers.0." + name, {64});
  add("model.norm", {64});
  add("lm_head", {96, 64});
  return tree;
}

PlanInputs InputsFor(const ModuleTree& tree, const std::string& architecture) {
  PlanInputs inputs = LlamaInputs(2);
  inputs.config.AsObject()["architectures"] = JsonValue::Array{architecture};
  inputs.model = &tree;
  return inputs;
}

TEST_CASE("a named plan goes before the index") {
  const ModuleTree tree = Decoder();
  const Result<Plan> plan = ChoosePlan("llama_nemotron_super_tp_plan", InputsFor(tree, "MistralForCausalLM"));
  REQUIRE(plan.ok());
  CHECK(plan.value().name == "llama_nemotron_super_tp_plan");
  CHECK(plan.value().chosen.empty());
}

TEST_CASE("the index goes before the checkpoint's own plan") {
  const ModuleTree tree = Decoder();
  PlanInputs inputs = InputsFor(tree, "MistralForCausalLM");
  inputs.config.AsObject()["base_model_tp_plan"] = JsonValue::Object{{"layers.*.self_attn.q_proj", "colwise"}};
  const Result<Plan> plan = ChoosePlan("", inputs);
  REQUIRE(plan.ok());
  CHECK(plan.value().name == "mistral");
  CHECK(plan.value().chosen == "plans/index.lua has it for MistralForCausalLM");
  CHECK(plan.diagnostics().empty());
}

TEST_CASE("a plan of the index that refuses is an error, not a reason for another plan") {
  const ModuleTree tree = Decoder();
  PlanInputs inputs = InputsFor(tree, "LlamaForCausalLM");
  inputs.mesh = MeshShape::Parse("tp=3").ValueOrThrow();
  const Result<Plan> plan = ChoosePlan("", inputs);
  CHECK(!plan.ok());
  CHECK_THAT(ToText(plan.diagnostics()),
             Contains("query heads of model.layers.*.self_attn: 3 does not divide 8") &&
                 Contains("required: one of 1, 2, 4, 8") &&
                 Contains("key heads of model.layers.*.self_attn: 4 is neither a multiple nor a divisor of 3") &&
                 !Contains("default"));
}

TEST_CASE("an unknown class with the usual names gets the default plan, and it is said") {
  const ModuleTree tree = Decoder();
  const Result<Plan> plan = ChoosePlan("", InputsFor(tree, "NewForCausalLM"));
  REQUIRE(plan.ok());
  CHECK(plan.value().name == "default");
  CHECK(
      ToText(plan.diagnostics()) ==
      "warning[MS0116]: no plan for the architecture 'NewForCausalLM': the default plan is used\n"
      "    declared: plans/default.lua shards the modules that it recognizes by name and leaves the others replicated\n"
      "    help: explain shows what the plan does; verify compares a sharded run with an unsharded run; --plan "
      "selects another plan\n");
}

TEST_CASE("a checkpoint's own plan goes before the default one, and it is said") {
  const ModuleTree tree = Decoder();
  PlanInputs inputs = InputsFor(tree, "NewForCausalLM");
  inputs.config.AsObject()["base_model_tp_plan"] =
      JsonValue::Object{{"layers.*.mlp.gate_proj", "colwise"}, {"layers.*.mlp.down_proj", "rowwise"}};
  const Result<Plan> plan = ChoosePlan("", inputs);
  REQUIRE(plan.ok());
  CHECK(plan.value().chosen == "the checkpoint's own plan");
  CHECK_THAT(plan.value().ToText(), Contains("model.layers.*.mlp.gate_proj") && Contains("config.json:1"));
  CHECK_THAT(ToText(plan.diagnostics()),
             Contains("no plan for the architecture 'NewForCausalLM': the checkpoint's own plan (base_model_tp_plan in "
                      "config.json) is used"));
}

TEST_CASE("a checkpoint's own plan with a style that nobody knows is an error, not a reason for another plan") {
  const ModuleTree tree = Decoder();
  PlanInputs inputs = InputsFor(tree, "NewForCausalLM");
  inputs.config.AsObject()["base_model_tp_plan"] = JsonValue::Object{{"layers.*.mlp.gate_proj", "colwize"}};
  const Result<Plan> plan = ChoosePlan("", inputs);
  CHECK(!plan.ok());
  CHECK_THAT(ToText(plan.diagnostics()), Contains("config.json:1") && Contains("did you mean 'colwise'"));
}

TEST_CASE("a model that nothing fits is an error with what can be done") {
  ModuleTree tree;
  tree.Add("transformer.h.0.attn.c_attn", "", {{"weight", {64, 192}, DType::kF32, false}});
  const Result<Plan> plan = ChoosePlan("", InputsFor(tree, "XLNetLMHeadModel"));
  CHECK(!plan.ok());
  CHECK_THAT(
      ToText(plan.diagnostics()),
      Contains(
          "error[MS0112]: no plan for the architecture 'XLNetLMHeadModel', and no block of the model is recognized "
          "unambiguously by names, shapes and config.json") &&
          Contains("--plan FILE") && Contains("--plan NAME, one of baichuan, ") && Contains("--mesh tp=1"));
}

// What the default plan does not know by name, or by size, keeps the block around it whole.
TEST_CASE("blocks that are recognized by their structure are sharded where no plan knows the names, and it is said") {
  ModuleTree tree;
  const auto add = [&](const std::string& path, std::vector<int64_t> shape) {
    const char* kind = path == "model.embed_tokens" ? "Embedding" : shape.size() == 1 ? "Norm" : "Linear";
    tree.Add(path, kind, {{"weight", std::move(shape), DType::kF32, false}});
  };
  add("model.embed_tokens", {96, 64});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const std::string name : {"q_proj", "out_proj"}) add(layer + "self_attn." + name, {64, 64});
    for (const std::string name : {"k_proj", "v_proj"}) add(layer + "self_attn." + name, {32, 64});
    for (const std::string name : {"w1", "w3"}) add(layer + "feed_forward." + name, {128, 64});
    add(layer + "feed_forward.w2", {64, 128});
    for (const std::string name : {"operator_norm", "ffn_norm"}) add(layer + name, {64});
  }
  add("model.norm", {64});
  add("lm_head", {96, 64});
  tree.set_complete(false);  // as of headers: a layer is no module of its own
  PlanInputs inputs = InputsFor(tree, "NewForCausalLM");
  inputs.config.AsObject()["vocab_size"] = 96;
  const Result<Plan> plan = ChoosePlan("", inputs);
  INFO(ToText(plan.diagnostics()));
  REQUIRE(plan.ok());
  CHECK(plan.value().chosen == "by the structure of the modules");
  CHECK_THAT(plan.value().ToText(), Contains("feed_forward.w2") && Contains("self_attn.out_proj"));
  CHECK_THAT(ToText(plan.diagnostics()),
             Contains("no plan for the architecture 'NewForCausalLM': the plan by structure is used") &&
                 Contains("moonshard suggest --sure writes this plan to a file"));

  // The same on every mesh and under the options that it has; one that does not fit is an error of this plan.
  inputs.options["sequence_parallel"] = true;
  CHECK(ChoosePlan("", inputs).ok());
  inputs.options.clear();
  inputs.mesh = MeshShape::Parse("tp=3").ValueOrThrow();
  const Result<Plan> uneven = ChoosePlan("", inputs);
  CHECK(!uneven.ok());
  CHECK_THAT(ToText(uneven.diagnostics()), Contains("query heads of model.layers.*.self_attn: 3 does not divide 8"));

  // An option that it does not have, with the reason.
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) add(layer + "scaling", {4});
  inputs.mesh = MeshShape::Parse("tp=2").ValueOrThrow();
  CHECK(ChoosePlan("", inputs).ok());
  inputs.options["sequence_parallel"] = true;
  CHECK_THAT(ToText(ChoosePlan("", inputs).diagnostics()),
             Contains("cannot shard the tokens: model.layers: the use of scaling in a layer is unknown"));
}

TEST_CASE("why the tokens cannot be shards is what the structure shows, also where names are the usual ones") {
  ModuleTree tree = Decoder();
  tree.Add("model.deepstack_merger", "", {{"weight", {64, 64}, DType::kF32, false}});
  tree.set_complete(false);
  PlanInputs inputs = InputsFor(tree, "NewForCausalLM");
  inputs.config.AsObject()["hidden_size"] = 64;
  inputs.config.AsObject()["vocab_size"] = 96;
  CHECK(ChoosePlan("", inputs).ok());
  inputs.options["sequence_parallel"] = true;
  const Result<Plan> plan = ChoosePlan("", inputs);
  CHECK(!plan.ok());
  CHECK_THAT(ToText(plan.diagnostics()),
             Contains("cannot shard the tokens: model.layers: image features are added between the layers") &&
                 !Contains("the default plan cannot determine"));
}

TEST_CASE("the default plan cuts only blocks that it knows wholly") {
  const auto rules = [](const ModuleTree& tree, std::map<std::string, JsonValue> options = {}) {
    PlanInputs inputs = InputsFor(tree, "NewForCausalLM");
    inputs.options = std::move(options);
    const Result<Plan> plan = ChoosePlan("default", inputs);
    return plan.ok() ? plan.value().ToText() : ToText(plan.diagnostics());
  };
  CHECK_THAT(rules(Decoder()), Contains("self_attn.q_proj") && Contains("mlp.down_proj") && Contains("lm_head"));

  ModuleTree sinks = Decoder();
  sinks.Add("model.layers.0.self_attn", "", {{"sinks", {8}, DType::kF32, false}});
  CHECK_THAT(rules(sinks), !Contains("self_attn") && Contains("mlp.down_proj"));

  ModuleTree beside = Decoder();  // whole, and it has to be said beside the embedding
  beside.Add("model.embedding_norm", "", {{"weight", {64}, DType::kF32, false}});
  CHECK_THAT(rules(beside), Contains("at(\"model.embedding_norm\") replicated") && Contains("mlp.down_proj"));

  ModuleTree wide_norm = Decoder();  // over all heads: a rank would need the others' features
  wide_norm.Add("model.layers.0.self_attn.q_norm", "", {{"weight", {64}, DType::kF32, false}});
  wide_norm.Add("model.layers.0.self_attn.k_norm", "", {{"weight", {32}, DType::kF32, false}});
  CHECK_THAT(rules(wide_norm), !Contains("self_attn") && Contains("mlp.down_proj"));

  ModuleTree fused = Decoder();
  fused.Add("model.layers.0.mlp.gate_up_proj", "", {{"weight", {256, 64}, DType::kF32, false}});
  CHECK_THAT(rules(fused), Contains("self_attn") && !Contains("mlp."));

  CHECK_THAT(rules(fused, {{"fused", "contiguous"}}), Contains("self_attn") && !Contains("mlp."));  // gate_proj as well

  ModuleTree router = Decoder();
  router.Add("model.layers.0.mlp.gate", "", {{"weight", {4, 64}, DType::kF32, false}});
  CHECK_THAT(rules(router), !Contains("mlp.down_proj"));
  CHECK_THAT(
      rules(router, {{"sequence_parallel", true}}),
      Contains(
          "sequence_parallel: the default plan cannot determine how model.layers.0.mlp.down_proj uses the sequence"));
}

// An activation that takes the mean and deviation over the features of a gate needs all of them (Gemma 3n).
TEST_CASE("no chosen plan shards the features of a gate whose activation depends on all of them") {
  const ModuleTree tree = Decoder();
  for (const std::string plan : {"default", ""}) {
    for (const double share : {0.0, 0.95}) {
      PlanInputs inputs = InputsFor(tree, "NewForCausalLM");
      inputs.config.AsObject()["activation_sparsity_pattern"] = JsonValue::Array{share, 0.0};
      const Result<Plan> chosen = ChoosePlan(plan, inputs);
      INFO(plan << " " << share << "\n" << ToText(chosen.diagnostics()));
      REQUIRE(chosen.ok());
      const std::string text = chosen.value().ToText();
      CHECK_THAT(text, Contains("self_attn.q_proj") && Contains("lm_head"));
      INFO(text);
      CHECK((text.find("mlp.down_proj\") rowwise") != std::string::npos) == (share == 0));
    }
  }
}

}  // namespace
}  // namespace moonshard
