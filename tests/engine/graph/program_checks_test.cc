// A plan's declarations against the true flow of an exported program: planted faults, each found with its lines.
#include "engine/graph/program_checks.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

const std::string kParityTests = SourcePath("tests/parity/");

// The program's tree under a plan of these rules, on two ranks.
Resolution ResolveRules(const std::string& program, const std::string& rules, bool with_model = false,
                        const std::string& mesh = "tp=2", std::map<std::string, std::string> plan_options = {}) {
  ModelOptions options;
  options.mesh = mesh;
  options.options = std::move(plan_options);
  options.model = kParityTests + (with_model ? "programs/" + program : program + ".pt2");
  if (with_model) options.program = options.model + "/program.pt2";
  const ModelFolder folder = OpenModelFolder(options, true).ValueOrThrow();
  const auto tree = std::make_shared<const ModuleTree>(TreeOf(folder));
  const PlanInputs inputs = InputsOf(options, folder.config, folder.mesh, *tree);
  const Result<Plan> plan = EvaluatePlan("return plan {\n" + rules + "}\n", "plan.lua", inputs);
  return RunPasses(std::make_shared<const Plan>(plan.value()), tree, folder.mesh);
}

Diagnostics OfFlow(const Resolution& resolution) {
  Diagnostics out;
  for (const Diagnostic& one : resolution.diagnostics) {
    if (one.finding == Finding::kFlowDoesNotFit) out.push_back(one);
  }
  return out;
}

TEST_CASE("a layout that the consumer does not declare is found with both lines") {
  const Resolution resolution = ResolveRules("fixed_sizes/none", R"(
    at("{q,k}", colwise {}),
    at("out", replicated {}),
  )");
  const Diagnostics found = OfFlow(resolution);
  INFO(ToText(resolution.diagnostics));
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0].message,
             Catch::Contains("(aten::linear) of 'out' is not valid for the local tensors of a rank: "
                             "the feature dims of its input and of its weight have different local sizes: 8 of 16 and "
                             "16"));
  CHECK(found[0].required == "8, because 'q.weight' is shard(0) (plan.lua:3)");
  CHECK(found[0].where.line == 3);
  CHECK(found[0].declared == "16, because 'out.weight' is replicate (plan.lua:4)");
  REQUIRE(found[0].related.size() == 1);
  CHECK(found[0].related[0].line == 4);
  CHECK_FALSE(resolution.compiled);
}

TEST_CASE("a full tensor where shards are declared is found") {
  const Diagnostics found = OfFlow(ResolveRules("fixed_sizes/none", R"(
    at("{q,k}", replicated {}),
    at("out", rowwise {}),
  )"));
  REQUIRE(found.size() == 1);
  CHECK(found[0].message ==
        "input 0 of 'out' arrives with all 16 elements along dim 2 on each rank, but is declared to be shard(-1)");
}

TEST_CASE("operands with different layouts between modules are found") {
  const Diagnostics found = OfFlow(ResolveRules("fixed_sizes/none", R"(
    at("q", colwise {}),
    at("k", replicated {}),
    at("out", rowwise {}),
  )"));
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0].message, Catch::Contains("node 'mul' (aten::mul") && Catch::Contains("8 of 16 and 16"));
}

TEST_CASE("one tensor for two arguments has one redistribution") {
  const auto found = [](const std::string& inputs) {
    return OfFlow(ResolveRules("own_modules/sizes/program",
                               "at(\"pair\", prepare_input { " + inputs + " }), default(replicated()),"));
  };
  const Diagnostics one = found("{ replicate, shared }, { replicate, replicate }");
  INFO(ToText(one));
  REQUIRE(one.size() == 1);
  CHECK(one[0].message == "inputs 0 and 1 of 'pair' are the same tensor, but are redistributed differently");
  CHECK(one[0].declared == "replicate -> shared, and no redistribution");
  CHECK(found("{ replicate, shared }, { replicate, shared }").empty());
  CHECK(found("{ replicate, replicate }").empty());
  CHECK(found("{ replicate, shared }").size() == 1);
}

// The product of q and k, as if it was made in a second part of q's call.
TEST_CASE("a call that the graph does not keep together is not redistributed, which is an error") {
  auto program =
      std::make_shared<ExportedProgram>(ReadProgramPath(kParityTests + "fixed_sizes/none.pt2").ValueOrThrow());
  const auto of_q = std::ranges::find_if(program->graph.nodes, [&](const ProgramNode& node) {
    return node.stack >= 0 && program->stacks[static_cast<size_t>(node.stack)].back().path == "q";
  });
  REQUIRE(of_q != program->graph.nodes.end());
  const auto found = [&](const std::string& rules) {
    auto tree = std::make_shared<ModuleTree>(ProgramTree(*program));
    AddProgramKnowledge(*tree, program);
    ModelOptions options;
    options.mesh = "tp=2";
    options.model = kParityTests + "fixed_sizes/none.pt2";
    const ModelFolder folder = OpenModelFolder(options, true).ValueOrThrow();
    const Result<Plan> plan = EvaluatePlan("return plan {\n" + rules + "}\n", "plan.lua",
                                           InputsOf(options, folder.config, folder.mesh, *tree));
    return OfFlow(RunPasses(std::make_shared<const Plan>(plan.value()), tree, folder.mesh));
  };
  const std::string colwise = R"(at("{q,k}", colwise {}), at("out", rowwise {}))";
  CHECK(found(colwise).empty());
  for (ProgramNode& node : program->graph.nodes) {
    if (node.target == "aten::mul") node.stack = of_q->stack;
  }
  const Diagnostics torn = found(colwise);
  INFO(ToText(torn));
  REQUIRE(torn.size() == 1);
  CHECK_THAT(torn[0].message, Catch::Contains("a call of 'q' are not contiguous in the graph"));
  CHECK(torn[0].where.line == 2);
  CHECK(found(R"(at("k", replicated {}))").empty());
}

TEST_CASE("a unit of fsdp that is called in a branch is an error") {
  const auto found = [](const std::string& wrap) {
    ModelOptions options;
    options.mesh = "dp=2";
    options.model = kParityTests + "own_modules/branches/program.pt2";
    const ModelFolder folder = OpenModelFolder(options, true).ValueOrThrow();
    const auto tree = std::make_shared<const ModuleTree>(TreeOf(folder));
    const PlanInputs inputs = InputsOf(options, folder.config, folder.mesh, *tree);
    const Result<Plan> plan =
        EvaluatePlan("return plan {\n api = 1, fsdp { wrap = " + wrap + " } }\n", "plan.lua", inputs);
    return RunPasses(std::make_shared<const Plan>(plan.value()), tree, folder.mesh);
  };
  const Resolution resolution = found(R"({ "wide", "norm" })");
  INFO(ToText(resolution.diagnostics));
  CHECK_FALSE(resolution.compiled);
  const auto unit = std::ranges::find(resolution.diagnostics, Finding::kNotSupported, &Diagnostic::finding);
  REQUIRE(unit != resolution.diagnostics.end());
  CHECK(unit->path == "wide");
  CHECK(unit->message ==
        "'wide' is a unit of fsdp and is called in a branch of torch.cond, which not every rank may run");
  CHECK(unit->where.line == 2);
  CHECK(unit->help == "make the module around the branches the unit instead of 'wide'");
  CHECK(found(R"("norm")").compiled);
}

TEST_CASE("an adapter of a module that is more than one linear layer of a program is an error with the reason") {
  const Resolution fits = ResolveRules("fixed_sizes/none", R"(
    at("{q,k}", colwise {}),
    at("out", rowwise {}),
    lora { at = "{q,k,out}", rank = 2 },
  )");
  INFO(ToText(fits.diagnostics));
  CHECK(fits.compiled);
  CHECK(fits.diagnostics.empty());

  const Resolution lookup = ResolveRules("llama", R"(
    extends "llama",
    lora { at = "model.layers.*.self_attn.q_proj", rank = 2 },
    lora { at = "model.embed_tokens", rank = 2 },
  )",
                                         true);
  INFO(ToText(lookup.diagnostics));
  CHECK_FALSE(lookup.compiled);
  const auto found = std::ranges::find(lookup.diagnostics, std::string("model.embed_tokens"), &Diagnostic::path);
  REQUIRE(found != lookup.diagnostics.end());
  CHECK(found->finding == Finding::kNotSupported);
  CHECK_THAT(found->message,
             Catch::StartsWith("the program cannot compute 'model.embed_tokens' with an adapter: node 'embedding'"));
  CHECK(found->where.line == 5);
  CHECK(std::ranges::count(lookup.diagnostics, Finding::kNotSupported, &Diagnostic::finding) == 1);
}

// The graph of one module is changed so that its weight has another use.
TEST_CASE("each other use of an adapted weight in a program is named") {
  auto program =
      std::make_shared<ExportedProgram>(ReadProgramPath(kParityTests + "fixed_sizes/none.pt2").ValueOrThrow());
  const auto found = [&](const ExportedProgram& changed) {
    auto tree = std::make_shared<ModuleTree>(ProgramTree(changed));
    AddProgramKnowledge(*tree, std::make_shared<const ExportedProgram>(changed));
    ModelOptions options;
    options.model = kParityTests + "fixed_sizes/none.pt2";
    const ModelFolder folder = OpenModelFolder(options, true).ValueOrThrow();
    const Result<Plan> plan = EvaluatePlan("return plan { default(replicated()), lora { at = 'q', rank = 2 } }",
                                           "p.lua", InputsOf(options, folder.config, folder.mesh, *tree));
    const Resolution resolution = RunPasses(std::make_shared<const Plan>(plan.value()), tree, folder.mesh);
    for (const Diagnostic& one : resolution.diagnostics) {
      if (one.path == "q") return one.message;
    }
    return std::string();
  };
  CHECK(found(*program).empty());
  const auto weight = std::ranges::find(program->tensors, std::string("q.weight"), &ProgramTensor::name);
  const auto other = std::ranges::find(program->tensors, std::string("k.weight"), &ProgramTensor::name);
  REQUIRE(weight != program->tensors.end());
  REQUIRE(other != program->tensors.end());
  const std::string begin = "the program cannot compute 'q' with an adapter: ";
  const auto value = weight->value;
  {
    ExportedProgram changed = *program;
    for (ProgramNode& node : changed.graph.nodes) {
      if (node.target != "aten::linear") continue;
      for (auto& [name, argument] : node.inputs) {
        if (name == "weight" && argument.value == other->value) argument.value = static_cast<uint32_t>(value);
      }
    }
    CHECK_THAT(found(changed), Catch::StartsWith(begin + "node ") && Catch::EndsWith("of 'k' uses its weight"));
  }
  {
    ExportedProgram changed = *program;
    for (ProgramNode& node : changed.graph.nodes) {
      const auto of_q = [&](const auto& input) { return input.second.value == value && input.first == "weight"; };
      if (node.target == "aten::linear" && std::ranges::any_of(node.inputs, of_q)) node.target = "aten::mm";
    }
    CHECK_THAT(found(changed), Catch::Contains("(aten::mm"));
  }
  {
    ExportedProgram changed = *program;
    changed.tensors[static_cast<size_t>(weight - program->tensors.begin())].value = -1;
    CHECK(found(changed) == begin + "no operator of the graph uses its weight");
  }
  {
    ExportedProgram changed = *program;
    changed.tensors[static_cast<size_t>(other - program->tensors.begin())].tied_to =
        static_cast<int32_t>(weight - program->tensors.begin());
    CHECK(found(changed) == begin + "its weight is tied to 'k.weight'");
  }
}

// Along cp the parameters are full, whatever fsdp does with them.
TEST_CASE("the sizes of a program are followed along cp") {
  for (const char* mesh : {"cp=2", "cp=4", "dp_shard=2,cp=2"}) {
    DYNAMIC_SECTION(mesh) {
      const Resolution right = ResolveRules("llama", R"(extends "llama")", true, mesh, {{"context", "ulysses"}});
      INFO(ToText(right.diagnostics));
      CHECK(right.compiled);
      // The values are not exchanged: attention would have all queries and keys, and the values of own tokens.
      const Resolution wrong = ResolveRules("llama", R"(
        extends "llama",
        at("model.layers.*.self_attn.v_proj", style {
          inputs = { { on { cp = shard(1) }, on { cp = shard(1) } } },
          outputs = { { on { cp = shard(1), tp = shard(-1) }, on { cp = shard(1), tp = shard(-1) } } },
          params = { weight = shard(0) },
        }))",
                                            true, mesh, {{"context", "ulysses"}});
      INFO(ToText(wrong.diagnostics));
      CHECK_FALSE(wrong.compiled);
      REQUIRE_FALSE(wrong.diagnostics.empty());
      CHECK_THAT(wrong.diagnostics.front().message, Catch::Contains("of 'model.layers.0.self_attn' is not valid"));
    }
  }
}

TEST_CASE("a ring, and cp and tp at once, are refused for a program") {
  const auto message = [](const std::string& mesh, const std::string& context) {
    const Resolution resolution = ResolveRules("llama", R"(extends "llama")", true, mesh, {{"context", context}});
    INFO(ToText(resolution.diagnostics));
    CHECK_FALSE(resolution.compiled);
    REQUIRE_FALSE(resolution.diagnostics.empty());
    const Diagnostic& found = resolution.diagnostics.back();
    CHECK(found.finding == Finding::kNotSupported);
    return found.message;
  };
  CHECK(message("cp=2", "ring") == "the attention of an exported program cannot be computed as a ring");
  CHECK(message("cp=2,tp=2", "ulysses") == "an exported program cannot be sharded on cp and tp at once");
}

// In whole models: one fault in one rule, one finding for all layers.
TEST_CASE("faults in plans of models are found where they are") {
  struct Fault {
    std::string rules;
    std::string message;
  };
  const std::vector<Fault> faults = {
      {R"(extends "llama", at("model.layers.*.self_attn.o_proj", replicated {}))",
       "of 'model.layers.0.self_attn.o_proj' is not valid for the local tensors of a rank"},
      {R"(extends "llama", at("model.layers.*.mlp.up_proj", replicated {}))",
       "of 'model.layers.0.mlp' is not valid for the local tensors of a rank"},
      {R"(extends "llama", at("model.layers.*.mlp.down_proj", colwise {}))",
       "input 0 of 'model.layers.0.mlp.down_proj' arrives with"},
      {R"(extends "llama", at("model.embed_tokens", replicated { output = shard(1) }))", "arrives with"},
  };
  for (const Fault& fault : faults) {
    DYNAMIC_SECTION(fault.rules) {
      const Resolution resolution = ResolveRules("llama", fault.rules, true);
      INFO(ToText(resolution.diagnostics));
      const Diagnostics found = OfFlow(resolution);
      REQUIRE_FALSE(found.empty());
      CHECK(std::ranges::any_of(
          found, [&](const Diagnostic& one) { return one.message.find(fault.message) != std::string::npos; }));
      CHECK_FALSE(resolution.compiled);
    }
  }
}

}  // namespace
}  // namespace moonshard::test
