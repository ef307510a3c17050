// Suggested plans. tests/cases/suggest has models whose modules are called otherwise than the shipped plans know, each
// with the plan that is suggested for it (APPROVE=1 rewrites those); families.txt counts how many parameters of every
// shipped family lie as the shipped plan puts them, and names those that do not.
#include "dsl/planning/suggest/suggest.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/core/base/text.h"
#include "engine/io/safetensors/tree.h"
#include "tests/cases/families/family.h"
#include "tests/support/golden.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

const std::string kCases = MOONSHARD_SOURCE_DIR "/tests/cases/suggest";

struct Suggested {
  Suggestion suggestion;
  ModelFolder folder;
  std::shared_ptr<const ModuleTree> tree;

  explicit Suggested(const std::string& path) : folder(Open(path)) {
    tree = std::make_shared<const ModuleTree>(TreeFromCheckpoint(folder.checkpoint, folder.config));
    suggestion = SuggestPlan(*tree, folder.config);
  }

  Resolution On(const std::string& mesh, const std::map<std::string, JsonValue>& options = {}) const {
    PlanInputs inputs;
    inputs.config = folder.config.json();
    inputs.mesh = MeshShape::Parse(mesh).ValueOrThrow();
    inputs.model = tree.get();
    inputs.options = options;
    Result<Plan> plan = EvaluatePlan(suggestion.text, "suggested.lua", inputs);
    Resolution failed;
    failed.diagnostics = plan.diagnostics();
    if (!plan.ok()) return failed;
    return RunPasses(std::make_shared<const Plan>(std::move(plan).value()), tree, inputs.mesh);
  }

 private:
  static ModelFolder Open(const std::string& path) {
    ModelOptions options;
    options.model = path;
    return OpenModelFolder(options, /*headers_only=*/true).ValueOrThrow();
  }
};

bool Offers(const Suggested& suggested, const char* option) {
  return suggested.suggestion.text.find(std::string(option) + " = false") != std::string::npos;
}

// No error on any mesh that cuts its heads, whatever is switched on.
void CheckOnMeshes(const Suggested& suggested, const std::vector<std::string>& meshes) {
  for (const std::string& mesh : meshes) {
    for (const bool on : {false, true}) {
      std::map<std::string, JsonValue> options;
      for (const char* option : {"sequence_parallel", "loss_parallel"}) {
        if (on && Offers(suggested, option)) options[option] = true;
      }
      const Resolution done = suggested.On(mesh, options);
      INFO(mesh << ", options " << on << "\n" << ToText(done.diagnostics) << suggested.suggestion.text);
      CHECK(done.compiled);
      CHECK_FALSE(HasErrors(done.diagnostics));
    }
  }
}

TEST_CASE("models with names of their own") {
  test::ScratchFolder scratch;
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(kCases)) {
    if (entry.path().extension() == ".json") names.insert(entry.path().stem().string());
  }
  REQUIRE(names.size() > 10);
  for (const std::string& name : names) {
    INFO(name);
    WriteModelFolder(scratch / name, ReadJsonFile(kCases + "/" + name + ".json").ValueOrThrow());
    const Suggested suggested(scratch / name);
    CheckOnMeshes(suggested, {"tp=1", "tp=2", "dp=2", "dp=2,tp=4"});
    CheckGolden(kCases + "/" + name + ".lua", suggested.suggestion.text);
  }
}

TEST_CASE("what is suggested for the shipped families is what their plans do") {
  test::ScratchFolder scratch;
  std::string report;
  size_t agree = 0;
  size_t all = 0;
  for (const Family& family : ReadFamilies(scratch.path())) {
    INFO(family.name);
    const Suggested suggested(family.folder);
    CheckOnMeshes(suggested, {"tp=1", "tp=2", "tp=4", "dp=2", "dp=2,tp=2"});
    const std::map<std::string, Held> shipped = HeldBy(Resolve(family, 2, {}).ValueOrThrow());
    const Resolution resolution = suggested.On("tp=2");
    REQUIRE(resolution.compiled);
    std::map<std::string, Held> ours = HeldBy(*resolution.compiled);
    std::string differ;
    size_t same = 0;
    for (const auto& [path, held] : shipped) {
      if (held.layout == ours[path].layout && held.local_shape == ours[path].local_shape) {
        ++same;
      } else {
        differ += "    " + path + ": " + ours[path].layout + ", shipped " + held.layout + "\n";
      }
    }
    report += family.name + ": " + std::to_string(same) + " of " + std::to_string(shipped.size()) + "\n" + differ;
    agree += same;
    all += shipped.size();
  }
  report += "all: " + std::to_string(agree) + " of " + std::to_string(all) + "\n";
  CHECK(agree * 100 > all * 95);
  CheckGolden(kCases + "/families.txt", report);
}

TEST_CASE("nothing is called sure that shapes alone say, and nothing is guessed of four squares") {
  test::ScratchFolder scratch;
  const auto suggested = [&](const std::string& name) {
    WriteModelFolder(scratch / name, ReadJsonFile(kCases + "/" + name + ".json").ValueOrThrow());
    return SuggestPlan(*Suggested(scratch / name).tree, ModelConfig(Suggested(scratch / name).folder.config));
  };
  CHECK(suggested("nameless").guesses == 2);
  const Suggestion squares = suggested("squares");
  CHECK(squares.full == 1);
  CHECK(squares.text.find("at(\"net.stage.*.mix.{a,b,c,d}\", replicated())") != std::string::npos);
  CHECK(squares.text.find("sequence_parallel = false") == std::string::npos);
}

// What a layer makes for its heads may be used by all: some layers cut and some whole would not fit together.
TEST_CASE("attention of one stack is cut in all layers or in none") {
  test::ScratchFolder scratch;
  for (const char* name : {"t5", "umt5", "first_layer_makes"}) {
    INFO(name);
    WriteModelFolder(scratch / name, ReadJsonFile(kCases + "/" + name + ".json").ValueOrThrow());
    const Resolution resolution = Suggested(scratch / name).On("tp=2");
    REQUIRE(resolution.compiled);
    std::map<std::string, std::set<std::string>> layouts;  // by module, its layer's number left out
    for (const auto& [path, held] : HeldBy(*resolution.compiled)) {
      if (path.find("SelfAttention") == std::string::npos) continue;
      layouts[path.substr(0, path.find("block.")) + path.substr(path.find("layer."))].insert(held.layout);
    }
    CHECK(layouts.size() >= 5);
    for (const auto& [module, held] : layouts) {
      INFO(module);
      CHECK(held.size() == 1);
    }
  }
}

// `check` would tell it, but on a mesh with dp alone.
TEST_CASE("no unit of fsdp holds one side of a tie") {
  test::ScratchFolder scratch;
  for (const char* name : {"pipeline", "container", "stages"}) {
    INFO(name);
    WriteModelFolder(scratch / name, ReadJsonFile(kCases + "/" + name + ".json").ValueOrThrow());
    const Suggested suggested(scratch / name);
    REQUIRE(suggested.tree->ties().size() == 1);
    CHECK_THAT(suggested.suggestion.text, Catch::Contains("fsdp { wrap = "));
    CHECK_FALSE(HasErrors(suggested.On("dp=4").diagnostics));
  }
}

}  // namespace
}  // namespace moonshard
