// A program follows the mode of the model: what the module of programs/modes computes in evaluation is what PyTorch
// computes, bit by bit the same each time, and leaves its statistics alone; in training everything that draws, draws,
// and the statistics are those of PyTorch's step. On one rank, against numbers of programs/make_programs.py.
#include <catch2/catch.hpp>

#include <filesystem>
#include <set>
#include <string>

#include <ATen/ATen.h>

#include "engine/io/exported_program/program_archive.h"
#include "engine/models/program/program.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/rounding.h"

namespace moonshard::test {
namespace {

const std::filesystem::path kModes = SourcePath("tests/parity/own_modules/modes");

NamedTensors BuffersOf(const Program& program) {
  NamedTensors out;
  for (const auto& buffer : program.named_buffers()) out[buffer.key()] = buffer.value().clone();
  return out;
}

at::Tensor Logits(Program& program, const NamedTensors& inputs) { return program.forward(inputs)["logits"].detach(); }

TEST_CASE("a program exported in training computes in evaluation what the model computes there") {
  const NamedTensors inputs = ReadTensors(kModes / "inputs.safetensors");
  const NamedTensors expected = ReadTensors(kModes / "expected.safetensors");
  constexpr double kBound = 1e-6;  // sums of a few float32
  for (const char* file : {"program.pt2", "evaluation.pt2"}) {
    CAPTURE(file);
    const auto program = Program::Open(kModes / file);
    CHECK(program->exported().trains == (std::string(file) == "program.pt2"));
    program->eval();
    const NamedTensors before = BuffersOf(*program);
    const at::Tensor logits = Logits(*program, inputs);
    CHECK(RelativeError(logits, expected.at("logits")) <= kBound);
    CHECK(RelativeError(program->forward(inputs)["loss"].detach(), expected.at("loss")) <= kBound);
    CHECK(at::equal(Logits(*program, inputs), logits));
    for (const auto& [name, buffer] : BuffersOf(*program)) {
      INFO(name);
      CHECK(at::equal(buffer, before.at(name)));
    }
  }
}

TEST_CASE("a program exported in training draws in training, and keeps the statistics of the step") {
  const NamedTensors inputs = ReadTensors(kModes / "inputs.safetensors");
  const NamedTensors expected = ReadTensors(kModes / "statistics.safetensors");
  const auto program = Program::Open(kModes / "program.pt2");
  const NamedTensors before = BuffersOf(*program);
  at::manual_seed(1);
  const at::Tensor logits = Logits(*program, inputs);
  CHECK_FALSE(at::equal(Logits(*program, inputs), logits));

  const auto fresh = Program::Open(kModes / "program.pt2");
  Logits(*fresh, inputs);
  std::set<std::string> moved;
  for (const auto& [name, buffer] : BuffersOf(*fresh)) {
    INFO(name);
    CHECK(RelativeError(buffer.to(at::kFloat), expected.at(name).to(at::kFloat)) <= 1e-6);
    if (!at::equal(buffer, before.at(name))) moved.insert(name);
  }
  CHECK(moved == std::set<std::string>{"batch_norm.num_batches_tracked", "batch_norm.running_mean",
                                       "batch_norm.running_var", "instance_norm.running_mean",
                                       "instance_norm.running_var"});  // and not those of `frozen`
}

// The operators of the module that draw in training.
const std::set<std::string, std::less<>> kDrawing = {
    "aten::dropout", "aten::dropout_", "aten::alpha_dropout", "aten::feature_dropout",
    "aten::rrelu",   "aten::gru",      "aten::lstm",          "aten::scaled_dot_product_attention"};

// Whether two forwards in training differ, where of the operators that draw only `on` is not switched off.
bool Draws(const ProgramArchive& archive, const ExportedProgram& exported, const std::string& on) {
  auto changed = std::make_shared<ExportedProgram>(exported);
  for (ProgramNode& node : changed->graph.nodes) {
    if (node.target == on || !kDrawing.contains(node.target)) continue;
    for (auto& [name, argument] : node.inputs) {
      if (name == "train" || name == "training") argument.integer = 0;
      if (name == "dropout_p") argument.number = 0;
    }
  }
  const auto program = Program::FromArchive(archive, std::move(changed)).ValueOrThrow();
  const NamedTensors inputs = ReadTensors(kModes / "inputs.safetensors");
  at::manual_seed(1);
  const at::Tensor logits = Logits(*program, inputs);
  return !at::equal(Logits(*program, inputs), logits);
}

TEST_CASE("every operator that draws in training draws by itself") {
  const ProgramArchive archive = ProgramArchive::Open((kModes / "program.pt2").string()).ValueOrThrow();
  const ExportedProgram exported = ReadProgram(archive).ValueOrThrow();
  std::set<std::string, std::less<>> found;
  for (const ProgramNode& node : exported.graph.nodes) {
    if (kDrawing.contains(node.target)) found.insert(node.target);
  }
  CHECK(found == kDrawing);
  for (const std::string& target : kDrawing) {
    INFO(target);
    CHECK(Draws(archive, exported, target));
  }
  CHECK_FALSE(Draws(archive, exported, ""));
}

TEST_CASE("a model with other operators in evaluation has an archive for each mode") {
  const std::filesystem::path drawing = SourcePath("tests/parity/own_modules/drawing");
  const NamedTensors inputs = ReadTensors(drawing / "inputs.safetensors");
  const at::Tensor expected = ReadTensors(drawing / "expected.safetensors").at("made");
  const auto program = Program::Open(drawing);
  for (int turn = 0; turn < 2; ++turn) {  // the checked sizes of one mode are not those of the other
    program->train();
    const at::Tensor made = program->forward(inputs)["made"].detach();
    CHECK_FALSE(at::equal(program->forward(inputs)["made"].detach(), made));
    program->eval();
    CHECK(RelativeError(program->forward(inputs)["made"].detach(), expected) <= 1e-6);
  }
  // Dropout that the model never switches off.
  const at::Tensor noisy = program->forward(inputs)["noisy"].detach();
  const at::Tensor kept = noisy.ne(0);
  CHECK(RelativeError(noisy.masked_select(kept), 2 * expected.masked_select(kept)) <= 1e-6);
  CHECK(kept.sum().item<int64_t>() < kept.numel());

  const auto only = Program::Open(drawing / "default.pt2");
  only->forward(inputs);
  only->eval();
  CHECK_THROWS_WITH(only->forward(inputs), Catch::Matchers::Contains("the program is only for training"));
}

}  // namespace
}  // namespace moonshard::test
