// What the loss of an exported program is: of every program of tests/parity that has one, and of changed ones.
#include "engine/models/own_loss.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <string>

#include "engine/io/exported_program/program_archive.h"
#include "engine/models/causal_lm.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

const std::filesystem::path kParityFolder = SourcePath("tests/parity");

ExportedProgram ReadParity(const std::string& path) { return ReadProgramPath(kParityFolder / path).ValueOrThrow(); }

TEST_CASE("the loss of causal language models is recognised as that of the next tokens") {
  int programs = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(kParityFolder / "programs")) {
    if (file.path().extension() != ".pt2") continue;
    const std::string name = file.path().lexically_relative(kParityFolder).string();
    CAPTURE(name);
    const ExportedProgram program = ReadParity(name);
    const bool other = name == "programs/t5/program.pt2";
    CHECK(OwnLossOf(program) == (other ? OwnLoss::kOther : OwnLoss::kNextTokens));
    // What computes it can be left out: all that is left is used, or was without effect before.
    const auto without = WithoutLoss(program);
    REQUIRE((without != nullptr) == IsCausalLm(program));
    CHECK(HasNextTokenLoss(program) == !other);
    ++programs;
    if (without == nullptr) continue;
    CHECK(without->outputs.size() + 1 == program.outputs.size());
    CHECK(std::ranges::count(without->outputs, "loss", &ProgramOutput::name) == 0);
    CHECK(std::ranges::count(without->graph.nodes, "aten::cross_entropy_loss", &ProgramNode::target) == 0);
    CHECK(without->graph.nodes.size() + 2 <= program.graph.nodes.size());
    CHECK(OwnLossOf(*without) == OwnLoss::kNone);
  }
  CHECK(programs > 25);
}

TEST_CASE("a loss of the same position is another one, and a program may have none") {
  const ExportedProgram same_position = ReadParity("own_modules/modes/program.pt2");
  CHECK(OwnLossOf(same_position) == OwnLoss::kOther);
  CHECK(OwnLossDiffers(same_position));
  const ExportedProgram without = ReadParity("own_modules/sizes/program.pt2");
  CHECK(OwnLossOf(without) == OwnLoss::kNone);
  CHECK_FALSE(OwnLossDiffers(without));
  CHECK_FALSE(HasNextTokenLoss(same_position));
  CHECK(WithoutLoss(without) == nullptr);
}

// The generated logits and labels of the comparison may have no value that the operator treats in its own way.
TEST_CASE("a loss that bounds logits, or ignores another label, is another one") {
  const auto bounded = [](const char* target, const char* least, double number) {
    ExportedProgram program = ReadParity("programs/llama/program.pt2");
    const auto entropy = std::ranges::find(program.graph.nodes, "aten::cross_entropy_loss", &ProgramNode::target);
    REQUIRE(entropy != program.graph.nodes.end());
    ProgramArgument& given = entropy->inputs[0].second;
    ProgramNode clamp;
    clamp.name = clamp.target = target;
    ProgramArgument bound;
    bound.kind = ProgramArgument::Kind::kFloat;
    bound.number = number;
    clamp.inputs = {{"self", given}, {least, bound}};
    program.values.push_back(program.values[given.value]);
    given.value = static_cast<uint32_t>(program.values.size() - 1);
    clamp.outputs = {given.value};
    program.graph.nodes.insert(entropy, clamp);
    return OwnLossOf(program);
  };
  CHECK(bounded("aten::clamp", "min", -5) == OwnLoss::kOther);
  ExportedProgram program = ReadParity("programs/llama/program.pt2");
  const auto entropy = std::ranges::find(program.graph.nodes, "aten::cross_entropy_loss", &ProgramNode::target);
  ProgramArgument ignored;
  ignored.kind = ProgramArgument::Kind::kInt;
  ignored.integer = 0;
  const auto index =
      std::ranges::find(entropy->inputs, "ignore_index", &std::pair<std::string, ProgramArgument>::first);
  if (index == entropy->inputs.end()) {
    entropy->inputs.emplace_back("ignore_index", ignored);
  } else {
    index->second = ignored;
  }
  CHECK(OwnLossOf(program) == OwnLoss::kOther);
}

// The loss plus a value of a layer, as a balance of experts is.
TEST_CASE("an auxiliary term makes the loss depend on more than logits") {
  ExportedProgram program = ReadParity("programs/llama/program.pt2");
  const auto loss = std::ranges::find(program.outputs, "loss", &ProgramOutput::name) - program.outputs.begin();
  ProgramArgument& returned = program.graph.outputs[static_cast<size_t>(loss)];
  const auto hidden = std::ranges::find(program.graph.nodes, "aten::rsqrt", &ProgramNode::target);
  REQUIRE(hidden != program.graph.nodes.end());
  ProgramNode sum;
  sum.name = "with_balance";
  sum.target = "aten::add";
  sum.overload = "Tensor";
  ProgramArgument term = returned;
  term.value = hidden->outputs[0];
  sum.inputs = {{"self", returned}, {"other", term}};
  ProgramValue value = program.values[returned.value];
  value.name = sum.name;
  returned.value = static_cast<uint32_t>(program.values.size());
  sum.outputs = {returned.value};
  program.values.push_back(value);
  program.graph.nodes.push_back(sum);
  CHECK(OwnLossOf(program) == OwnLoss::kOfMore);
  CHECK(OwnLossDiffers(program)->declared.find("auxiliary terms") != std::string::npos);
}

// The loss times 1 in one branch, times 3 in the other.
TEST_CASE("a loss may be computed in a branch") {
  const auto of_branch = [](bool first) {
    ExportedProgram program = ReadParity("programs/llama/program.pt2");
    const auto loss = std::ranges::find(program.outputs, "loss", &ProgramOutput::name) - program.outputs.begin();
    ProgramArgument& returned = program.graph.outputs[static_cast<size_t>(loss)];
    const auto value = [&] {
      program.values.push_back(program.values[returned.value]);
      return static_cast<uint32_t>(program.values.size() - 1);
    };
    const auto node = [&](ProgramNode::Kind kind) -> ProgramNode& {
      ProgramNode made;
      made.kind = kind;
      made.name = made.target = "cond";
      return program.graph.nodes.emplace_back(std::move(made));
    };
    const auto times = [&](double factor) {
      ProgramNode& product = node(ProgramNode::Kind::kOperator);
      product.target = "aten::mul";
      product.overload = "Tensor";
      ProgramArgument number;
      number.kind = ProgramArgument::Kind::kFloat;
      number.number = factor;
      product.inputs = {{"self", returned}, {"other", number}};
      ProgramArgument result = returned;
      result.value = value();
      program.graph.nodes.back().outputs = {result.value};
      return std::pair<std::string, ProgramArgument>("", result);
    };
    ProgramArgument predicate;
    predicate.kind = ProgramArgument::Kind::kBool;
    predicate.integer = first ? 1 : 0;
    node(ProgramNode::Kind::kBranch).inputs = {{"", predicate}};
    const auto one = times(1);
    node(ProgramNode::Kind::kElse);
    const auto other = times(3);
    ProgramNode& join = node(ProgramNode::Kind::kJoin);
    join.inputs = {one, other};
    join.outputs = {value()};
    returned.value = join.outputs[0];
    return OwnLossOf(program);
  };
  CHECK(of_branch(true) == OwnLoss::kNextTokens);
  CHECK(of_branch(false) == OwnLoss::kOther);
}

}  // namespace
}  // namespace moonshard::test
