// Modules of one's own (programs/make_programs.py, `nested` and `tables`) on one rank and on two under a plan, against
// what PyTorch computed of them: inputs in a list and in a dict, a module at two paths, an input and a number as
// outputs, two tables in one module.
#include <catch2/catch.hpp>

#include <filesystem>
#include <string>

#include <ATen/ATen.h>

#include "dsl/language/eval/load_plan.h"
#include "engine/models/program/program.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

const std::filesystem::path kOwnModules = SourcePath("tests/parity/own_modules");

Plan PlanOfRules(const std::string& rules, const MeshShape& mesh, const ModuleTree& tree) {
  PlanInputs inputs;
  inputs.mesh = mesh;
  inputs.model = &tree;
  return EvaluatePlan("return plan { " + rules + " }\n", "plan.lua", inputs).ValueOrThrow();
}

// One step in evaluation mode; the loss is the output `loss`, or else a sum of `made`.
void ExpectStep(const std::string& name, const std::string& rules, DeviceMesh& mesh,
                const std::string& archive = "program.pt2") {
  const NamedTensors expected = ReadTensors(kOwnModules / name / "expected.safetensors");
  const auto program = Program::Open(kOwnModules / name / archive);
  const LiveTree live = ReadLiveTree(*program).ValueOrThrow();
  auto model = Parallelize(program, PlanOfRules(rules, mesh.shape(), *live.tree), mesh);
  program->eval();
  constexpr double kBound = 1e-5;
  const auto expect = [&](const at::Tensor& got, const std::string& of) {
    const at::Tensor& want = expected.at(of);
    Expect(got.sizes() == want.sizes() && got.scalar_type() == want.scalar_type(), name + ": another type of " + of);
    const double error = RelativeError(got.to(at::kDouble), want.to(at::kDouble));
    Expect(error <= kBound, name + ": " + of + " differs by " + std::to_string(error));
  };
  const ProgramOutputs outputs = program->forward(ReadTensors(kOwnModules / name / "inputs.safetensors"));
  for (const std::string& output : outputs.names()) expect(outputs[output].detach(), output);
  const at::Tensor loss = outputs.Has("loss") ? outputs["loss"] : (outputs["made"] * at::linspace(-1, 1, 8)).sum();
  loss.backward();
  size_t gradients = 0;
  for (const LiveParameter& parameter : model.applied().parameters()) {
    if (parameter.is_buffer) continue;
    Expect(parameter.tensor.grad().defined(), name + ": no gradient of " + parameter.path);
    expect(GatherFull(model.applied(), parameter, parameter.tensor.grad()), "grad." + parameter.path);
    ++gradients;
  }
  Expect(gradients + outputs.names().size() == expected.size(), name + ": another number of results");
}

TEST_CASE("inputs in lists and dicts, a module at two paths, and inputs and numbers as outputs") {
  const auto program = Program::Open(kOwnModules / "nested/program.pt2");
  std::vector<std::string> inputs;
  for (const ProgramInput& input : program->inputs()) inputs.push_back(input.name);
  CHECK(inputs == std::vector<std::string>{"parts.0", "parts.1", "scales.wide", "scales.narrow"});
  RunRanks("tp=1", [](DeviceMesh& mesh) { ExpectStep("nested", "default(replicated())", mesh); });
  const auto rules = [](const std::string& module) {
    return "at(\"" + module + ".up\", colwise {}), at(\"" + module +
           ".down\", rowwise {}), at(\"mix\", colwise { output = replicate })";
  };
  RunRanks("tp=2", [&](DeviceMesh& mesh) { ExpectStep("nested", rules("{first,second}"), mesh); });
  const MeshShape mesh = MeshShape::Parse("tp=2").ValueOrThrow();
  const Plan one_path = PlanOfRules(rules("first"), mesh, *ReadLiveTree(*program).ValueOrThrow().tree);
  CHECK_THROWS_WITH(Parallelize(program, one_path, DeviceMesh::Recording(mesh)),
                    Catch::Contains("'first.up.bias' and 'second.up.bias' are tied (one tensor), but have different "
                                    "layouts") &&
                        Catch::Contains("'first.up' and 'second.up' are one module under two paths"));
}

constexpr const char* kRulesOfTables =
    R"(at("embed", style { name = "tables", params = { weight = shard(0), positions = replicate },
                           lookup = "masked", inputs = { { replicate, replicate } },
                           outputs = { { partial, replicate } } }),
       at("up", colwise {}), at("down", rowwise {}), at("lm_head", colwise { output = replicate }))";

TEST_CASE("a module looks ids up in its sharded table and in a table beside it") {
  RunRanks("tp=1", [](DeviceMesh& mesh) { ExpectStep("tables", "default(replicated())", mesh); });
  RunRanks("tp=2", [](DeviceMesh& mesh) { ExpectStep("tables", kRulesOfTables, mesh); });
}

TEST_CASE("an archive of the oldest torch that the exporter runs with computes the same") {
  const std::string archive = "torch_2_9.pt2";
  CHECK(Program::Open(kOwnModules / "tables" / archive)->exported().torch_version.starts_with("2.9."));
  RunRanks("tp=1", [&](DeviceMesh& mesh) { ExpectStep("tables", "default(replicated())", mesh, archive); });
  RunRanks("tp=2", [&](DeviceMesh& mesh) { ExpectStep("tables", kRulesOfTables, mesh, archive); });
}

}  // namespace
}  // namespace moonshard::test
