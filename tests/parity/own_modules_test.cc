// Modules of one's own (programs/make_programs.py, `nested`, `tables` and `hooked`) on one rank and on two under a plan,
// against what PyTorch computed of them: inputs in a list and in a dict, a module at two paths, an input and a number as
// outputs, two tables in one module, reentrant checkpointing, hooks of a module.
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
#include "tests/support/process.h"
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
  // Numbers that are computed from sizes are outputs; truth values and constants of the model's result are not.
  std::vector<std::string> outputs;
  for (const ProgramOutput& output : program->exported().outputs) outputs.push_back(output.name);
  CHECK(outputs == std::vector<std::string>{"made", "given", "length", "half", "ratio", "three"});
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

TEST_CASE("an integer that both branches of a cond return is a constant of the program") {
  RunRanks("tp=1", [](DeviceMesh& mesh) { ExpectStep("constants", "default(replicated())", mesh); });
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    ExpectStep("constants", R"(at("block.up", colwise {}), at("block.down", rowwise {}))", mesh);
  });
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

// The hook of the inputs makes what the linear layer reads: its gradient is summed at the boundary around the hook.
TEST_CASE("a block under reentrant checkpointing has its gradients, and hooks are part of their module's call") {
  CHECK(NotKeptByTraining(Program::Open(kOwnModules / "hooked/program.pt2")->exported()).empty());
  RunRanks("tp=1", [](DeviceMesh& mesh) { ExpectStep("hooked", "default(replicated())", mesh); });
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    ExpectStep("hooked", R"(at("block.up", colwise {}), at("block.down", rowwise {}), at("mix", colwise {}),
                            at("lm_head", rowwise {}))",
               mesh);
  });
}

TEST_CASE("what a hook computes of a partial result is refused") {
  const auto program = Program::Open(kOwnModules / "hooked/program.pt2");
  const MeshShape mesh = MeshShape::Parse("tp=2").ValueOrThrow();
  const Plan rowwise = PlanOfRules(R"(at("embed", colwise {}), at("mix", rowwise {}), default(replicated()))", mesh,
                                   *ReadLiveTree(*program).ValueOrThrow().tree);
  CHECK_THROWS_WITH(Parallelize(program, rowwise, DeviceMesh::Recording(mesh)),
                    Catch::Contains("node 'tanh' (aten::tanh) of 'mix'") && Catch::Contains("'mix.bias', added once"));
}

TEST_CASE("archives of other versions of torch compute the same") {
  // The first is of the oldest torch that the exporter runs with.
  for (const std::string version : {"2.9", "2.10", "2.12"}) {
    INFO("torch " << version);
    const std::string archive = "torch_" + Replaced(version, ".", "_") + ".pt2";
    CHECK(Program::Open(kOwnModules / "tables" / archive)->exported().torch_version.starts_with(version + "."));
    RunRanks("tp=1", [&](DeviceMesh& mesh) { ExpectStep("tables", "default(replicated())", mesh, archive); });
    RunRanks("tp=2", [&](DeviceMesh& mesh) { ExpectStep("tables", kRulesOfTables, mesh, archive); });
  }
}

}  // namespace
}  // namespace moonshard::test
