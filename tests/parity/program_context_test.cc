// Programs of the reference architectures whose sequence is sharded over cp ("ulysses"): the outputs and gradients that
// transformers recorded, and the collectives that explain predicts.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/models/program/program.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

struct ProgramContextSetup {
  std::string checkpoint;
  std::string mesh;
  std::string sections;  // of the plan, beside the shipped one's
  std::string Name() const { return checkpoint + " " + mesh + (sections.empty() ? "" : " " + sections); }
};

std::vector<ProgramContextSetup> RecordedPrograms() {
  std::vector<ProgramContextSetup> out;
  for (const char* checkpoint : {"llama_gqa", "ministral3_yarn", "qwen2_tied", "qwen3_head_dim12"}) {
    out.push_back({checkpoint, "cp=2"});
  }
  out.push_back({"llama_gqa", "cp=4"});
  out.push_back({"llama_gqa", "dp_shard=2,cp=2"});
  out.push_back({"llama_gqa", "dp_shard=2,cp=2", "ddp {}"});
  out.push_back({"llama_gqa", "cp=2", R"(recompute { "model.layers.*" })"});
  return out;
}

struct ContextProgram {
  std::shared_ptr<Program> program;
  std::shared_ptr<AppliedPlan> applied;
};

ContextProgram LoadProgramInContext(const ProgramContextSetup& setup, const DeviceMesh& mesh) {
  const std::filesystem::path folder = SourcePath("tests/parity/" + setup.checkpoint);
  ContextProgram out;
  out.program = Program::Open(SourcePath("tests/parity/programs/reference/" + setup.checkpoint + ".pt2"));
  const LiveTree live = ReadLiveTree(*out.program).ValueOrThrow();
  PlanInputs inputs;
  inputs.config = ReadConfig(folder);
  inputs.mesh = mesh.shape();
  inputs.model = live.tree.get();
  inputs.options["context"] = std::string("ulysses");
  const std::string family = std::filesystem::path(SelectPlan(inputs.config).ValueOrThrow()).stem().string();
  Plan plan = EvaluatePlan("return plan { extends \"" + family + "\", " + setup.sections + " }", "context.lua", inputs)
                  .ValueOrThrow();
  CompiledPlan compiled =
      ResolvePlan(std::make_shared<const Plan>(std::move(plan)), live.tree, mesh.shape()).ValueOrThrow();
  out.applied = AppliedPlan::Apply(live, std::move(compiled), mesh);
  const Checkpoint checkpoint = Checkpoint::Open(folder.string()).ValueOrThrow();
  Expect(LoadCheckpoint(*out.applied, checkpoint, {.recipes = out.program->recipes()}).empty(),
         "the checkpoint fits without a warning");
  return out;
}

// What explain predicts is what ran.
void ExpectProgramAsPredicted(const AppliedPlan& applied, const at::Tensor& ids) {
  const PlanTotals totals = TotalsOf(applied.plan(), applied.mesh().rank(), Tokens{ids.size(0), ids.size(1)});
  const CollectiveCounts counts = applied.counts();
  Expect(counts.of(Direction::kForward, CollectiveKind::kAllToAll).count > 0, "heads are exchanged");
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      const CollectiveCount& expected = totals.collectives.of(direction, kind);
      const CollectiveCount& got = counts.of(direction, kind);
      Expect(got == expected, std::string(ToString(kind)) + " " + ToString(direction) + ": " +
                                  std::to_string(got.count) + " of " + std::to_string(got.bytes) + " bytes ran, " +
                                  std::to_string(expected.count) + " of " + std::to_string(expected.bytes) +
                                  " were predicted");
    }
  }
}

TEST_CASE("programs under context parallelism give the numbers of transformers") {
  for (const ProgramContextSetup& setup : RecordedPrograms()) {
    DYNAMIC_SECTION(setup.Name()) {
      const std::filesystem::path folder = SourcePath("tests/parity/" + setup.checkpoint);
      const NamedTensors inputs = ReadTensors(folder / "inputs_1.safetensors");
      const NamedTensors expected = ReadTensors(folder / "expected_1.safetensors");
      double logits_error = 0;
      std::pair<double, std::string> worst;
      std::mutex mutex;
      RunRanks(setup.mesh, [&](DeviceMesh& mesh) {
        const ContextProgram loaded = LoadProgramInContext(setup, mesh);
        loaded.applied->ClearCounts();
        const ProgramOutputs outputs = loaded.program->forward(inputs.at("input_ids"), inputs.at("labels"));
        outputs["loss"].backward();
        ExpectProgramAsPredicted(*loaded.applied, inputs.at("input_ids"));
        const double here = std::max(RelativeError(outputs["logits"].detach(), expected.at("logits")),
                                     RelativeError(outputs["loss"].detach(), expected.at("loss")));
        std::pair<double, std::string> gradient;
        for (const LiveParameter& parameter : loaded.applied->parameters()) {
          if (parameter.is_buffer) continue;
          const at::Tensor full = GatherFull(*loaded.applied, parameter, parameter.tensor.grad());
          gradient = std::max(gradient, {RelativeError(full, expected.at("grad." + parameter.path)), parameter.path});
        }
        const std::lock_guard lock(mutex);
        logits_error = std::max(logits_error, here);
        worst = std::max(worst, gradient);
      });
      INFO("gradient of " << worst.second);
      CHECK(logits_error <= RecordedBound(folder / "expected_1.safetensors"));
      CHECK(worst.first <= RecordedBound(folder / "expected_1.safetensors"));
    }
  }
}

// Heads that a graph takes from the sizes of weights, which are full on every rank of cp.
TEST_CASE("a program whose sizes of heads do not follow cp is refused") {
  for (const char* checkpoint : {"mistral_window8", "gemma3_softcap", "phi3_gqa", "baichuan1"}) {
    DYNAMIC_SECTION(checkpoint) {
      const std::vector<RankFailure> failures = RunRanksFailing("cp=2", [&](DeviceMesh& mesh) {
        LoadProgramInContext({checkpoint, "cp=2", ""}, mesh);
      });
      REQUIRE(failures.size() == 2);
      for (const RankFailure& failure : failures) CHECK_THAT(failure.text, Catch::Contains("error[MS0318]"));
    }
  }
}

}  // namespace
}  // namespace moonshard::test
