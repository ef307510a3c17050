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

TEST_CASE("adapters of a program are an error, at the line of their section") {
  const Resolution resolution = ResolveRules("fixed_sizes/none", R"(
    at("{q,k}", colwise {}),
    at("out", rowwise {}),
    lora { at = "{q,out}", rank = 2 },
  )");
  INFO(ToText(resolution.diagnostics));
  CHECK_FALSE(resolution.compiled);
  REQUIRE(resolution.diagnostics.size() == 1);
  const Diagnostic& found = resolution.diagnostics.front();
  CHECK(found.finding == Finding::kNotSupported);
  CHECK(found.message ==
        "the plan gives modules of an exported program adapters, which the program cannot compute: 'out' and 1 other");
  CHECK(found.where.line == 5);
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
