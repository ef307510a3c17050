// Under autocast a program computes in float32 where its model does, and the first values of its parameters are its
// model's.
#include <catch2/catch.hpp>

#include <cmath>
#include <memory>
#include <string>

#include <ATen/ATen.h>

#include "engine/io/safetensors/checkpoint.h"
#include "engine/models/program/program.h"
#include "engine/plan/plan/plan.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/autocast.h"
#include "engine/runtime/sharded_model/initialize.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

const std::string kFolderOfPrograms = SourcePath("tests/parity/programs/");

// The logits of a row of 1500 tokens, by which rotary angles reach numbers that bfloat16 rounds to multiples of 8.
at::Tensor LongRow(const std::shared_ptr<Program>& program, bool autocast) {
  const at::Tensor ids = at::arange(1500).remainder(48).view({1, 1500});
  const c10::NoGradGuard no_grad;
  const nn::Autocast mode(at::kCPU, autocast ? at::kBFloat16 : at::kFloat);
  return program->forward({{"input_ids", ids}, {"labels", ids}})["logits"];
}

std::shared_ptr<Program> Loaded(std::shared_ptr<const ExportedProgram> exported) {
  auto program = Program::FromProgram(std::move(exported)).ValueOrThrow();
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    auto model = Parallelize(program, Plan(), mesh);
    const Checkpoint weights = Checkpoint::Open(kFolderOfPrograms + "llama").ValueOrThrow();
    LoadCheckpoint(model.applied(), weights, {.recipes = program->recipes()});
  });
  return program;
}

TEST_CASE("under autocast a program computes in float32 where its model switches autocast off") {
  auto exported =
      std::make_shared<const ExportedProgram>(ReadProgramPath(kFolderOfPrograms + "llama/program.pt2").ValueOrThrow());
  CHECK(exported->autocast_regions);
  const at::Tensor want = LongRow(Loaded(exported), false);
  const double error = RelativeError(LongRow(Loaded(exported), true).to(at::kFloat), want);
  CHECK(error < 0.03);
  // The same graph without its regions: the angles are rounded.
  auto without = std::make_shared<ExportedProgram>(*exported);
  std::erase_if(without->graph.nodes, [](const ProgramNode& node) {
    return node.kind == ProgramNode::Kind::kEnterAutocast ||
           (node.kind == ProgramNode::Kind::kLeave && node.target == "wrap_with_autocast");
  });
  CHECK(without->graph.nodes.size() + 2 == exported->graph.nodes.size());
  CHECK(RelativeError(LongRow(Loaded(without), true).to(at::kFloat), want) > 3 * error);
  // An archive that does not record the regions does not run under autocast.
  without->autocast_regions = false;
  const std::shared_ptr<Program> older = Loaded(without);
  CHECK(RelativeError(LongRow(older, false), want) == 0);
  CHECK_THROWS_WITH(LongRow(older, true), Catch::Contains("does not record where the model switches autocast off"));
}

// As `train` opens it. On two ranks gradients are also summed.
TEST_CASE("gradients of a program exported in bfloat16 are float32 in training, under autocast too") {
  const std::string folder = kFolderOfPrograms + "dtypes";
  for (const char* mesh_text : {"tp=1", "dp=2"}) {
    for (const bool autocast : {false, true}) {
      RunRanks(mesh_text, [&](DeviceMesh& mesh) {
        const std::shared_ptr<Program> program = Program::Open(folder + "/bfloat16.pt2", "float32");
        Plan plan;
        if (mesh.shape().world_size() > 1) {
          plan.data_parallel.emplace();
          plan.data_parallel->wrap = {{.pattern = "model.layers.*"}};
        }
        auto model = Parallelize(program, plan, mesh);
        LoadCheckpoint(model.applied(), Checkpoint::Open(folder).ValueOrThrow(), {.recipes = program->recipes()});
        {
          const nn::Autocast mode(at::kCPU, autocast ? at::kBFloat16 : at::kFloat);
          program->forward(ReadTensors(folder + "/inputs.safetensors"))["loss"].backward();
        }
        for (const LiveParameter& parameter : model.applied().parameters()) {
          const at::Tensor gradient = parameter.tensor.grad();
          if (parameter.is_buffer || parameter.tensor.numel() == 0) continue;
          Expect(gradient.defined() && gradient.scalar_type() == at::kFloat, parameter.path + ": another dtype");
          // Numbers that bfloat16 does not have.
          Expect(autocast || !at::equal(gradient, gradient.to(at::kBFloat16).to(at::kFloat)),
                 parameter.path + ": rounded");
        }
      });
    }
  }
}

// Gemma 3, whose norms multiply by 1 + weight.
TEST_CASE("parameters of a program begin as those of its model") {
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    const std::shared_ptr<Program> program = Program::Open(kFolderOfPrograms + "dtypes/bfloat16.pt2", "float32");
    auto model = Parallelize(program, Plan(), mesh);
    Initialize(model.applied(), 3, RecordedInit(program->exported()));
    int norms = 0;
    for (const auto& [path, tensor] : FullState(model.applied())) {
      if (!path.ends_with("norm.weight")) continue;
      ++norms;
      Expect(at::equal(tensor, at::zeros_like(tensor)), path);
    }
    Expect(norms > 8, "norms");
    const at::Tensor embedding = FullState(model.applied()).at("model.embed_tokens.weight");
    Expect(std::abs(embedding.std().item<double>() - 0.02) < 0.004, "the deviation of the config");
  });
}

TEST_CASE("persistent buffers of a program begin as those of its model") {
  RunRanks("tp=1", [&](DeviceMesh& mesh) {
    const std::shared_ptr<Program> program = Program::Open(kFolderOfPrograms + "deepseek_v3/program.pt2");
    auto model = Parallelize(program, Plan(), mesh);
    const ExportedProgram& exported = program->exported();
    const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
    Initialize(model.applied(), 3, RecordedInit(exported));
    Expect(model.applied().parameters().size() > 0 && FullState(model.applied()).at(bias).isnan().any().item<bool>(),
           "without a rule for buffers the buffer has no values");
    Initialize(model.applied(), 3, RecordedInit(exported), RecordedBufferInit(exported));
    Expect(at::equal(FullState(model.applied()).at(bias), at::zeros({4})), "zeros, as _init_weights gives it");
  });
}

}  // namespace
}  // namespace moonshard::test
