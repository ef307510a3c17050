// A program with torch.cond (programs/make_programs.py, `branches`): branches by the values and by the length of its
// input, one inside another. On one rank and on ranks under a plan, against what PyTorch computed of the module.
#include <catch2/catch.hpp>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include "dsl/language/eval/load_plan.h"
#include "engine/analysis/meta/meta_scope.h"
#include "engine/analysis/prove/proof.h"
#include "engine/analysis/prove/type_scope.h"
#include "engine/models/program/program.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

const std::filesystem::path kBranches = SourcePath("tests/parity/own_modules/branches");
// An input for each branch: the sum of its values, and its length. The sums of `negative3` and `negative6` differ in
// the branch of the branch.
const std::vector<std::string> kBranchInputs = {"positive6", "positive3", "negative6", "negative3"};
constexpr double kBranchBound = 1e-5;

const char* const kBranchRules = R"(
  at("{wide,narrow,long,short}.up", colwise {}),
  at("{wide,narrow,long,short}.down", rowwise {}),
  at("shared", colwise { output = replicate }),
  at("{norm,gate}", replicated {}),
)";

Plan BranchPlan(const std::string& rules, const MeshShape& mesh, const ModuleTree& tree) {
  PlanInputs inputs;
  inputs.mesh = mesh;
  inputs.model = &tree;
  return EvaluatePlan("return plan {\n  api = 1," + rules + "}\n", "plan.lua", inputs).ValueOrThrow();
}

at::Tensor BranchLoss(const at::Tensor& made) { return (made * at::linspace(-1, 1, 8, made.options())).sum(); }

TEST_CASE("a program runs the branch that its predicate chooses, forward and backward") {
  const NamedTensors expected = ReadTensors(kBranches / "expected.safetensors");
  for (const std::string& name : kBranchInputs) {
    CAPTURE(name);
    const auto program = Program::Open(kBranches / "program.pt2");
    program->eval();
    const at::Tensor made = program->forward(expected.at("x." + name))["made"];
    CHECK(RelativeError(made.detach(), expected.at("made." + name)) <= kBranchBound);
    BranchLoss(made).backward();
    size_t gradients = 0;
    for (const auto& parameter : program->named_parameters()) {
      CAPTURE(parameter.key());
      const auto found = expected.find("grad." + name + "." + parameter.key());
      const at::Tensor& gradient = parameter.value().grad();
      CHECK(gradient.defined() == (found != expected.end()));
      if (!gradient.defined() || found == expected.end()) continue;
      CHECK(RelativeError(gradient, found->second) <= kBranchBound);
      ++gradients;
    }
    CHECK(gradients >= 10);
    const c10::NoGradGuard no_grad;
    CHECK(at::equal(program->forward(expected.at("x." + name))["made"], made));
  }
}

TEST_CASE("modes hold in branches: training, autocast, and regions inside") {
  const NamedTensors expected = ReadTensors(kBranches / "expected.safetensors");
  const auto program = Program::Open(kBranches / "program.pt2");
  const auto made = [&](const std::string& name) {
    return program->forward(expected.at("x." + name))["made"].detach();
  };
  // The dropout is in the branch of short inputs.
  program->train();
  CHECK_FALSE(at::equal(made("positive3"), made("positive3")));
  CHECK(RelativeError(made("positive6"), expected.at("made.positive6")) <= kBranchBound);
  program->eval();
  CHECK(at::equal(made("positive3"), made("positive3")));
  // The branches of `negative6` have linear layers, the inner branch too.
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor cast = made("negative6");
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  const double error = RelativeError(cast.to(at::kFloat), expected.at("made.negative6"));
  CHECK(error > 1e-4);
  CHECK(error < 5e-2);
}

TEST_CASE("a program with branches computes the same numbers under a plan") {
  const NamedTensors expected = ReadTensors(kBranches / "expected.safetensors");
  for (const char* mesh : {"tp=2", "tp=4"}) {
    RunRanks(mesh, [&](DeviceMesh& ranks) {
      const auto program = Program::Open(kBranches / "program.pt2");
      const LiveTree live = ReadLiveTree(*program).ValueOrThrow();
      CompiledPlan plan = ResolvePlan(std::make_shared<const Plan>(BranchPlan(kBranchRules, ranks.shape(), *live.tree)),
                                      live.tree, ranks.shape())
                              .ValueOrThrow();
      const auto applied = AppliedPlan::Apply(live, std::move(plan), ranks);
      program->eval();
      for (const std::string& name : kBranchInputs) {
        for (const auto& parameter : program->parameters()) parameter.mutable_grad() = at::Tensor();
        const at::Tensor made = program->forward(expected.at("x." + name))["made"];
        const double error = RelativeError(made.detach(), expected.at("made." + name));
        Expect(error <= kBranchBound, name + ": differs by " + std::to_string(error));
        BranchLoss(made).backward();
        for (const LiveParameter& parameter : applied->parameters()) {
          if (parameter.is_buffer) continue;
          const auto found = expected.find("grad." + name + "." + parameter.path);
          const bool has = parameter.tensor.grad().defined();
          Expect(has == (found != expected.end()), name + ": another set of gradients: " + parameter.path);
          if (!has) continue;
          const at::Tensor full = GatherFull(*applied, parameter, parameter.tensor.grad());
          const double of_gradient = RelativeError(full, found->second);
          Expect(of_gradient <= kBranchBound,
                 name + ": gradient of " + parameter.path + " differs by " + std::to_string(of_gradient));
        }
      }
    });
  }
}

// Data-parallel ranks take other branches: the gradients of a parameter that one rank uses are the mean with zeros.
TEST_CASE("data-parallel ranks may run different branches") {
  const NamedTensors expected = ReadTensors(kBranches / "expected.safetensors");
  RunRanks("dp=2", [&](DeviceMesh& ranks) {
    const auto program = Program::Open(kBranches / "program.pt2");
    const LiveTree live = ReadLiveTree(*program).ValueOrThrow();
    const std::string rules = std::string(kBranchRules) + R"(ddp {},)";
    CompiledPlan plan = ResolvePlan(std::make_shared<const Plan>(BranchPlan(rules, ranks.shape(), *live.tree)),
                                    live.tree, ranks.shape())
                            .ValueOrThrow();
    const auto applied = AppliedPlan::Apply(live, std::move(plan), ranks);
    program->eval();
    const std::string names[] = {"positive6", "negative3"};
    const std::string& own = names[ranks.coordinate(MeshAxis::kDpShard)];
    BranchLoss(program->forward(expected.at("x." + own))["made"]).backward();
    for (const LiveParameter& parameter : applied->parameters()) {
      if (parameter.is_buffer) continue;
      at::Tensor mean;
      for (const std::string& name : names) {
        const auto found = expected.find("grad." + name + "." + parameter.path);
        if (found == expected.end()) continue;
        mean = mean.defined() ? mean + found->second / 2 : found->second / 2;
      }
      Expect(parameter.tensor.grad().defined() == mean.defined(), "another set of gradients: " + parameter.path);
      if (!mean.defined()) continue;
      const double error = RelativeError(parameter.tensor.grad(), mean);
      Expect(error <= kBranchBound, parameter.path + " differs by " + std::to_string(error));
    }
  });
}

// Without values both branches run, and gradients reach the parameters of both.
TEST_CASE("the layouts of both branches are proven on the meta device") {
  const MeshShape shape = MeshShape::Parse("tp=2").ValueOrThrow();
  const MetaScope meta;
  const auto prove = [&](const std::string& rules) {
    return ProveAtTwoSizes(
        shape,
        [&](const DeviceMesh& mesh, const TypeOptions& options) {
          ExportedProgram exported = ReadProgramPath(kBranches / "program.pt2").ValueOrThrow();
          for (ProgramTensor& tensor : exported.tensors) {
            if (tensor.kind != ProgramTensor::Kind::kConstant) tensor.entry.clear();
          }
          const auto program =
              Program::FromProgram(std::make_shared<const ExportedProgram>(std::move(exported))).ValueOrThrow();
          const LiveTree live = ReadLiveTree(*program).ValueOrThrow();
          auto model = Parallelize(program, BranchPlan(rules, mesh.shape(), *live.tree), mesh);
          const at::Tensor x = at::empty({2, 6, 8}, at::kMeta);
          TypeScope scope(model.applied(), options);
          const at::Tensor loss = BranchLoss(program->forward(x)["made"]);
          scope.Loss(loss);
          loss.backward();
          std::set<std::string> used;
          for (const auto& parameter : program->named_parameters()) {
            if (parameter.value().grad().defined()) used.insert(parameter.key());
          }
          CHECK(used.contains("wide.up.weight"));
          CHECK(used.contains("narrow.up.weight"));
          return scope.Finish();
        },
        {}, 0, c10::Device(at::kMeta));
  };
  const Proof proof = prove(kBranchRules);
  for (const TypeFault& fault : proof.faults) UNSCOPED_INFO(fault.path << ": " << fault.what << ": " << fault.message);
  for (const auto& [what, unproven] : proof.unproven) UNSCOPED_INFO(what << " " << unproven.first);
  CHECK(proof.layouts_hold());
}

}  // namespace
}  // namespace moonshard::test
