// Small programs whose graphs hold sizes in many ways (fixed_sizes/make_programs.py), on ranks: a plan that resolves
// for a program computes what the program computes on one rank; one that would not is refused. What each is refused for
// is tested in tests/engine/graph/local_sizes_test.cc.
#include <catch2/catch.hpp>

#include <filesystem>
#include <mutex>
#include <set>

#include <torch/nn/module.h>

#include "dsl/language/eval/load_plan.h"
#include "engine/models/program/program.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/apply/parallelize.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

const std::filesystem::path kFixedSizes = std::filesystem::path(SourcePath("tests/parity/fixed_sizes"));

Plan FixedSizesPlan(const Program& program, const MeshShape& mesh, const std::map<std::string, bool>& options) {
  const LiveTree live = ReadLiveTree(const_cast<Program&>(program)).ValueOrThrow();
  PlanInputs inputs;
  inputs.mesh = mesh;
  inputs.model = live.tree.get();
  for (const auto& [name, value] : options) inputs.options[name] = value;
  return LoadPlanFile(kFixedSizes / "plan.lua", inputs).ValueOrThrow();
}

// Their output is partial if q is sharded.
const std::set<std::string> kSummed = {"shared_heads", "bias_of_uncalled",    "masked_sum",
                                       "sum_reduced",  "sum_differences",     "sum_crossed",
                                       "sum_resized",  "shared_heads_behind", "expanded_square"};

// Every rank reads all of k.
const std::set<std::string> kFullKeys = {"key_cache", "factor_written", "too_large", "two_parts"};

TEST_CASE("a program whose sizes fit a plan computes the same numbers under it, and every other one is refused") {
  int accepted = 0;
  int refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFixedSizes)) {
    if (entry.path().extension() != ".pt2") continue;
    const std::string name = entry.path().stem();
    if (name == "turned") continue;  // its output is sharded: tests/engine/models/program/trial_test.cc
    at::manual_seed(3);
    const at::Tensor x = at::randn({2, 6, 8});
    const at::Tensor expected = Program::Open(entry.path())->forward(x).tensors().at(0).detach();
    std::map<std::string, bool> options;
    if (name == "gathered") options["gathered"] = true;
    if (kSummed.contains(name)) options["summed"] = true;
    if (kFullKeys.contains(name)) options["full"] = true;
    for (const char* mesh : {"tp=2", "tp=4"}) {
      const auto probe = Program::Open(entry.path());
      const MeshShape shape = MeshShape::Parse(mesh).ValueOrThrow();
      const auto plan = std::make_shared<const Plan>(FixedSizesPlan(*probe, shape, options));
      const Resolution resolution = RunPasses(plan, ReadLiveTree(*probe).ValueOrThrow().tree, shape);
      if (!resolution.compiled) {
        ++refused;
        INFO(name << " " << mesh);
        const Finding found = resolution.diagnostics.front().finding;
        CHECK((found == Finding::kFixedSize || found == Finding::kFlowDoesNotFit || found == Finding::kProgramGuard));
        CHECK_THROWS_AS(Parallelize(probe, *plan, DeviceMesh::Recording(shape)), PlanError);
        continue;
      }
      ++accepted;
      RunRanks(mesh, [&](DeviceMesh& ranks) {
        auto sharded = Parallelize(Program::Open(entry.path()), *plan, ranks);
        const at::Tensor made = sharded.forward(x).tensors().at(0).detach();
        Expect(made.sizes() == expected.sizes(), name + ": another shape");
        const double difference = (made - expected).abs().max().item<double>();
        Expect(difference < 1e-5, name + " on " + std::string(mesh) + ": differs by " + std::to_string(difference));
      });
    }
  }
  CHECK(accepted == 125);
  CHECK(refused == 249);
}

}  // namespace
}  // namespace moonshard::test
