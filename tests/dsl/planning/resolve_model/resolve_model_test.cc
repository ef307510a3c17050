#include "dsl/planning/resolve_model/resolve_model.h"
#include "tests/support/paths.h"

#include <catch2/catch.hpp>

namespace moonshard {
namespace {

const std::string kModel = test::SourcePath("tests/parity/llama_gqa");

ModelOptions OptionsFor(const std::string& plan, const std::string& mesh) {
  ModelOptions options;
  options.model = kModel;
  options.plan = plan;
  options.mesh = mesh;
  return options;
}

TEST_CASE("a model directory and words become a compiled plan") {
  const Result<CompiledPlan> plan = ResolveFromHeaders(OptionsFor("", "tp=2"));
  REQUIRE(plan.ok());
  CHECK(plan.value().plan->name == "llama");
  CHECK(plan.value().mesh.ToString() == "tp=2");
  CHECK(plan.value().rule_matches.size() == plan.value().plan->rules.size());
}

TEST_CASE("MODEL and --program give a config, a checkpoint and a program") {
  const std::string llama = test::SourcePath("tests/parity/programs/llama");
  const std::string outputs = test::SourcePath("tests/parity/own_modules/outputs/program.pt2");
  struct FolderCase {
    std::string model;
    std::string program;
    bool has_program;
    bool is_program;
    size_t files;  // of the checkpoint
    bool weights;  // whether there are any
    int64_t vocabulary;
    size_t notes;
  };
  for (const FolderCase& one : {FolderCase{llama, "", false, false, 1, true, 48, 0},
                                FolderCase{llama, llama + "/program.pt2", true, false, 1, true, 48, 1},
                                FolderCase{llama, llama + "/inputs", true, false, 1, true, 48, 1},
                                FolderCase{llama + "/program.pt2", "", true, true, 0, false, 48, 1},
                                FolderCase{llama + "/inputs", "", true, true, 0, false, 48, 1},
                                FolderCase{llama + "/with_weights.pt2", "", true, true, 0, true, 48, 1},
                                FolderCase{outputs, "", true, true, 0, true, 24, 1}}) {
    INFO(one.model << " " << one.program);
    const ModelFolder folder = OpenModelFolder({.model = one.model, .program = one.program}, false).ValueOrThrow();
    CHECK((folder.program != nullptr) == one.has_program);
    CHECK(folder.is_program == one.is_program);
    CHECK(folder.checkpoint.files().size() == one.files);
    CHECK(!NoWeights(folder) == one.weights);
    CHECK(VocabularyOf(folder) == one.vocabulary);
    if (folder.program) CHECK(NotesOf(*folder.program).size() == one.notes);
    const ModelFolder bare = OpenModelWithoutWeights({.model = one.model, .program = one.program}).ValueOrThrow();
    CHECK(bare.checkpoint.files().empty());
    CHECK(bare.config.json() == folder.config.json());
  }
}

TEST_CASE("what is wrong with the directory and the mesh is said at once") {
  ModelOptions options = OptionsFor("", "tp=0");
  options.model = test::SourcePath("tests");
  const Result<CompiledPlan> plan = ResolveFromHeaders(options);
  REQUIRE(!plan.ok());
  CHECK(plan.diagnostics().size() == 3);  // mesh, config.json, checkpoint
}

TEST_CASE("stage by stage: what came before the stage that failed is there") {
  const CompiledPlan good = ResolveFromHeaders(OptionsFor("", "tp=2")).ValueOrThrow();
  PlanInputs inputs;
  inputs.mesh = good.mesh;
  const std::string cases = test::SourcePath("tests/cases/repl/plans/");
  EvaluationRecord record;
  inputs.record = &record;
  const Resolution broken = ResolveModel(cases + "broken.lua", inputs, good.tree);
  CHECK(broken.plan == nullptr);
  CHECK(HasErrors(broken.diagnostics));
  CHECK(record.files == std::vector<std::string>{cases + "broken.lua"});  // also of a plan that failed
  const Resolution conflict = ResolveModel(cases + "conflict.lua", inputs, good.tree);
  REQUIRE(conflict.plan != nullptr);
  CHECK(conflict.plan->rules.size() == 7);
  CHECK(!conflict.matched);
  CHECK(!conflict.compiled);
  CHECK(conflict.diagnostics.size() == 2);
  auto plan = std::make_shared<Plan>(*good.plan);
  plan->rules.front().style.params["weight"] = Placement(Layout::Shard(5));
  const Resolution bad_dim = RunPasses(plan, good.tree, good.mesh);
  CHECK(bad_dim.matched);
  CHECK(!bad_dim.compiled);
  REQUIRE(HasErrors(bad_dim.diagnostics));
  CHECK(bad_dim.diagnostics.front().finding == Finding::kBadDim);
}

TEST_CASE("the record of an evaluation has the options, with their defaults") {
  const CompiledPlan good = ResolveFromHeaders(OptionsFor("", "tp=2")).ValueOrThrow();
  PlanInputs inputs;
  inputs.config = ParseJson(R"({"architectures": ["LlamaForCausalLM"], "num_attention_heads": 8})", "c").ValueOrThrow();
  inputs.mesh = good.mesh;
  inputs.options = {{"sequence_parallel", "true"}};
  EvaluationRecord record;
  inputs.record = &record;
  CHECK(ResolveModel("", inputs, good.tree).compiled);
  REQUIRE(record.options.contains("sequence_parallel"));
  CHECK(record.options.at("sequence_parallel").value == JsonValue(true));
  CHECK(record.options.at("sequence_parallel").fallback == JsonValue(false));
  CHECK(record.options.at("sequence_parallel").source.ToString() == "plans/llama.lua:4");
  CHECK(record.files.empty());  // all built in
}

TEST_CASE("batch and sequence are two positive numbers") {
  CHECK(ParseTokens("2,128").value() == std::pair<int64_t, int64_t>(2, 128));
  for (const char* bad : {"", "5", "2,", "0,4", "2,-1", "2,4,8", "2,x"}) CHECK(!ParseTokens(bad).ok());
}

}  // namespace
}  // namespace moonshard
