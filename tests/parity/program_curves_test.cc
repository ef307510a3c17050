// The losses of AdamW's steps on exported programs are those of one rank however the ranks share the work. In float64,
// where what is left is the order of sums. Models compute parts in float32 by themselves (norms, routers, state-space
// scans), so the test reads float64 wherever a node of a program names float32. DeepSeek-V3 has a program for this: the
// operator that its experts use otherwise takes no float64.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "engine/io/exported_program/program_archive.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/models/program/program.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/clip_grad_norm.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/train/optim/adamw.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

constexpr int kProgramCurveSteps = 50;
constexpr int64_t kProgramCurveRows = 4;
constexpr int64_t kProgramCurveTokens = 10;

void NameDouble(ProgramArgument& argument) {
  static const int float32 = SerializedDType("float32").value();
  static const int float64 = SerializedDType("float64").value();
  if (argument.kind == ProgramArgument::Kind::kScalarType && argument.integer == float32) argument.integer = float64;
  for (ProgramArgument& element : argument.elements) NameDouble(element);
}

std::shared_ptr<Program> OpenInDouble(const std::filesystem::path& file) {
  const ProgramArchive archive = ProgramArchive::Open(file.string()).ValueOrThrow();
  ExportedProgram program = ReadProgram(archive).ValueOrThrow();
  for (ProgramNode& node : program.graph.nodes) {
    for (auto& [name, argument] : node.inputs) NameDouble(argument);
  }
  return Program::FromArchive(archive, std::make_shared<const ExportedProgram>(std::move(program))).ValueOrThrow();
}

at::Tensor ProgramBatch(int step) {
  const at::Tensor numbers = at::arange(kProgramCurveRows * kProgramCurveTokens) * (step % 7 + 3) + 5 * step;
  return (numbers.remainder(40) + 3).view({kProgramCurveRows, kProgramCurveTokens});
}

// The mean over the ranks of each step's loss.
std::vector<double> ProgramCurve(const std::filesystem::path& folder, const std::string& mesh_text) {
  std::mutex mutex;
  std::vector<double> losses(kProgramCurveSteps, 0);
  RunRanks(mesh_text, [&](DeviceMesh& mesh) {
    const std::filesystem::path in_double = folder / "program_float64.pt2";
    const std::shared_ptr<Program> program =
        OpenInDouble(std::filesystem::exists(in_double) ? in_double : folder / "program.pt2");
    PlanInputs inputs;
    inputs.config = ReadConfig(folder);
    inputs.mesh = mesh.shape();
    const LiveTree live = ReadLiveTree(*program).ValueOrThrow();
    inputs.model = live.tree.get();
    const bool own = std::filesystem::exists(folder / "plan.lua");
    Plan plan = LoadPlanFile(own ? (folder / "plan.lua").string() : SelectPlan(inputs.config).ValueOrThrow(), inputs)
                    .ValueOrThrow();
    const int64_t shares = mesh.shape().size(MeshAxis::kDpShard);
    if (shares > 1) {
      plan.data_parallel.emplace();
      plan.data_parallel->wrap = {{.pattern = "model.layers.*"}};
    }
    const auto model = Parallelize(program, plan, mesh, {.deferred_type = at::kDouble});
    LoadCheckpoint(model.applied(), Checkpoint::Open(folder.string()).ValueOrThrow(), {.recipes = program->recipes()});
    // At 1e-2 training of Qwen3.5 is chaotic: rounding of 4e-14 grows to 8e-8 in 50 steps.
    AdamW optimizer = MakeAdamW(model.applied(), torch::optim::AdamWOptions(3e-3).weight_decay(0.1));
    const int64_t rows = kProgramCurveRows / shares;
    for (int step = 0; step < kProgramCurveSteps; ++step) {
      optimizer.zero_grad();
      const at::Tensor ids = ProgramBatch(step).narrow(0, mesh.coordinate(MeshAxis::kDpShard) * rows, rows);
      const at::Tensor loss = program->forward(ids, ids)["loss"];
      Expect(loss.scalar_type() == at::kDouble, "the program computes in float64");
      loss.backward();
      ClipGradNorm(model.applied(), 1.0);
      optimizer.step();
      const std::lock_guard lock(mutex);
      losses[static_cast<size_t>(step)] += loss.item<double>() / static_cast<double>(mesh.shape().world_size());
    }
  });
  return losses;
}

TEST_CASE("the loss curves of programs are the same however the ranks share the work") {
  for (const char* name : {"deepseek_v3", "nemotron_h", "olmo2", "qwen3_5"}) {
    const std::filesystem::path folder = std::filesystem::path(SourcePath("tests/parity/programs")) / name;
    const std::vector<double> one = ProgramCurve(folder, "tp=1");
    CHECK(one.back() < one.front() - 0.5);  // it learns
    for (const char* mesh : {"tp=2", "dp=2,tp=2"}) {
      INFO(name << " " << mesh);
      const std::vector<double> sharded = ProgramCurve(folder, mesh);
      double worst = 0;
      for (size_t i = 0; i < one.size(); ++i) worst = std::max(worst, std::abs(sharded[i] - one[i]));
      std::cout << name << " " << mesh << ": loss " << one.front() << " to " << one.back() << ", largest difference "
                << worst << "\n";
      CHECK(worst <= 1e-9);
    }
  }
}

}  // namespace
}  // namespace moonshard::test
