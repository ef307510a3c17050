// A directory of programs for different sets of inputs (programs/llama/inputs): each call runs the program that takes
// exactly the inputs that the call gives, and computes what transformers computes from these inputs.
#include <catch2/catch.hpp>

#include <filesystem>
#include <string>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/models/causal_lm.h"
#include "engine/models/program/program.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/models/fixture.h"
#include "tests/parity/setup.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

const std::filesystem::path kModelOfSets = std::filesystem::path(SourcePath("tests/parity/programs/llama"));
constexpr const char* kSets[] = {"default", "attention_mask", "position_ids", "attention_mask+position_ids"};
constexpr const char* kQuery = "model.layers.0.self_attn.q_proj.weight";

ParallelModel<std::shared_ptr<Program>> LoadSets(const std::shared_ptr<Program>& program, const DeviceMesh& mesh) {
  PlanInputs inputs;
  inputs.config = ReadConfig(kModelOfSets);
  inputs.mesh = mesh.shape();
  const Plan plan = LoadPlanFile(SelectPlan(inputs.config).ValueOrThrow(), inputs).ValueOrThrow();
  auto model = Parallelize(program, plan, mesh);
  LoadCheckpoint(model.applied(), Checkpoint::Open(kModelOfSets.string()).ValueOrThrow(),
                 {.recipes = program->recipes()});
  return model;
}

TEST_CASE("a call runs the program of the inputs that it gives") {
  for (const char* mesh_text : {"tp=1", "tp=2"}) {
    RunRanks(mesh_text, [&](DeviceMesh& mesh) {
      const std::shared_ptr<Program> program = Program::Open(kModelOfSets / "inputs");
      auto model = LoadSets(program, mesh);
      const CausalLm causal = CausalLmOfProgram(program).ValueOrThrow();
      for (const std::string set : kSets) {
        const NamedTensors inputs = ReadTensors(kModelOfSets / "inputs" / (set + ".inputs.safetensors"));
        const NamedTensors expected = ReadTensors(kModelOfSets / "inputs" / (set + ".expected.safetensors"));
        for (const at::Tensor& parameter : model.parameters()) parameter.mutable_grad() = at::Tensor();
        const ProgramOutputs outputs = program->forward(inputs);
        outputs["loss"].backward();
        at::Tensor grad;
        for (const LiveParameter& parameter : model.applied().parameters()) {
          if (parameter.path == kQuery) grad = GatherFull(model.applied(), parameter, parameter.tensor.grad());
        }
        constexpr double kBound = 2e-5;
        const auto expect = [&](const at::Tensor& got, const char* name) {
          const double error = RelativeError(got, expected.at(name));
          Expect(error < kBound, set + " " + name + ": " + std::to_string(error));
        };
        expect(outputs["loss"], "loss");
        expect(outputs["logits"], "logits");
        expect(grad, (std::string("grad.") + kQuery).c_str());
        const auto given = [&](const char* name) {
          return inputs.contains(name) ? std::optional(inputs.at(name)) : std::nullopt;
        };
        const c10::NoGradGuard no_grad;
        expect(causal.forward(inputs.at("input_ids"), given("attention_mask"), given("position_ids")), "logits");
      }
    });
  }
}

TEST_CASE("inputs of a directory of programs") {
  const std::shared_ptr<Program> program = Program::Open(kModelOfSets / "inputs");
  std::vector<std::string> names;
  for (const ProgramInput& input : program->inputs()) names.push_back(input.name + (input.value < 0 ? "?" : ""));
  CHECK(names == std::vector<std::string>{"input_ids", "labels", "attention_mask?", "position_ids?"});
  CHECK(IsCausalLm(program->exported()));
  ExportedProgram classifier = program->exported();
  for (ProgramOutput& output : classifier.outputs) {
    if (output.name == "logits") output.shape.pop_back();
  }
  CHECK_FALSE(IsCausalLm(classifier));
}

TEST_CASE("inputs that no program of a directory takes") {
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    const std::shared_ptr<Program> program = Program::Open(kModelOfSets / "inputs");
    auto model = LoadSets(program, mesh);
    const NamedTensors inputs = ReadTensors(kModelOfSets / "inputs" / "attention_mask.inputs.safetensors");
    const auto error_of = [&](const NamedTensors& given) -> std::string {
      try {
        program->forward(given);
      } catch (const PlanError& error) {
        return error.what();
      }
      return "no error";
    };
    const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
    const std::string unknown =
        error_of({{"input_ids", inputs.at("input_ids")}, {"token_type_ids", inputs.at("labels")}});
    Expect(has(unknown, "the program has no input 'token_type_ids'"), unknown);
    Expect(has(unknown, "the program needs the input 'labels'"), unknown);
    std::map<std::string, at::Tensor> other = inputs;
    other["input_ids"] = other["input_ids"].view({-1});
    const std::string shape = error_of(other);
    Expect(has(shape, "the input 'input_ids' has the shape [36]"), shape);
  });
}

}  // namespace
}  // namespace moonshard::test
