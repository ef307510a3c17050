// The texts of an exported program (program_texts.h): compiling the graph and making the modules, with parameters on the
// meta device, also in another dtype; and resolving some plans of what was accepted. A program that is refused has
// errors with messages; no exception leaves.
#include <memory>
#include <utility>

#include "engine/models/program/compile_program.h"
#include "engine/models/program/program.h"
#include "tests/fuzz/program_checks.h"
#include "tests/fuzz/program_texts.h"
#include "tests/fuzz/target.h"

namespace moonshard::fuzz {
namespace {

using program::Body;
using program::Instruction;
using program::Operand;

void RequireInside(const Body& body, const Operand& operand) {
  using Kind = Operand::Kind;
  const bool constant = operand.kind == Kind::kConstant || operand.kind == Kind::kDropout;
  Require(operand.kind != Kind::kRegister || operand.index < body.registers, "an operand in no register");
  Require(operand.kind != Kind::kParameter || operand.index < body.parameters.size(), "no such parameter");
  Require(!constant || operand.index < body.constants.size(), "no such constant");
  if (operand.kind != Kind::kList) return;
  Require(operand.index < body.lists.size(), "no such list");
  for (const Operand& element : body.lists[operand.index].elements) RequireInside(body, element);
}

// What the runner of the body (run_body.cc) does not look at again.
void RequireRunnable(const program::CompiledProgram& compiled, const std::string& path, const Body& body) {
  using Kind = Instruction::Kind;
  for (size_t at = 0; at < body.instructions.size(); ++at) {
    const Instruction& one = body.instructions[at];
    for (const Operand& operand : one.operands) RequireInside(body, operand);
    const bool drops = one.kind == Kind::kOperator || one.kind == Kind::kLookup || one.kind == Kind::kAttention;
    for (const uint32_t output : one.outputs)
      Require(output < body.registers || (drops && output == Instruction::kNowhere), "a result in no register");
    for (const uint32_t unused : one.unused) Require(unused < body.registers, "no such register");
    const bool number = one.kind == Kind::kSize || one.kind == Kind::kParameterSize || one.kind == Kind::kArithmetic;
    Require(!number || one.outputs.size() == 1, "a number with more or fewer results");
    Require(one.kind != Kind::kJoin || one.operands.size() == 2 * one.outputs.size(), "branches of other results");
    const bool jumps = one.kind == Kind::kBranch || one.kind == Kind::kElse;
    Require(!jumps || (one.skip_to > at && one.skip_to < body.instructions.size()), "a branch that does not end");
    if (one.kind != Kind::kCall) continue;
    const program::ChildCall& child = body.children[one.child];
    std::string name = child.module.starts_with('.') ? path + child.module : child.module;
    if (child.module == ".") name = path;
    if (path.empty()) name.erase(0, 1);
    const auto called = compiled.bodies.find({name, child.occurrence});
    Require(called != compiled.bodies.end(), "a call of no body");
    Require(called->second->inputs == one.operands.size(), "a call with other inputs than its body");
    Require(called->second->outputs.size() == one.outputs.size(), "a call with other results than its body");
  }
  for (const uint32_t output : body.outputs) Require(output < body.registers, "an output in no register");
}

}  // namespace
}  // namespace moonshard::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  const Result<ProgramArchive> archive = fuzz::ArchiveOf(fuzz::TextOf(data, size));
  fuzz::Require(archive.ok(), "an archive that is none");
  Result<ExportedProgram> read = ReadProgram(archive.value());
  if (!read.ok()) return 0;
  const auto program = std::make_shared<const ExportedProgram>(std::move(read).value());
  fuzz::RequireConsistent(*program);
  const Result<std::shared_ptr<Program>> made = Program::FromArchive(archive.value(), program);
  if (!made.ok()) {
    fuzz::Require(HasErrors(made.diagnostics()), "refused without an error");
    for (const Diagnostic& d : made.diagnostics()) fuzz::Require(!d.message.empty(), "an error without a message");
    return 0;
  }
  fuzz::Require(made.value()->modules().size() == program->modules.size(), "modules that the program does not have");
  fuzz::Require(made.value()->inputs().size() == program->inputs.size(), "inputs that the program does not have");
  if (Result<ExportedProgram> wider = InDType(*program, "float64"); wider.ok()) {
    const auto opened =
        Program::FromArchive(archive.value(), std::make_shared<const ExportedProgram>(std::move(wider).value()));
    fuzz::Require(opened.ok() || HasErrors(opened.diagnostics()), "refused without an error");
  }
  const auto compiled = program::CompileProgram(*program);
  fuzz::Require(compiled.ok(), "a program that does not compile again");
  for (const auto& [call, body] : compiled.value().bodies) fuzz::RequireRunnable(compiled.value(), call.first, *body);
  fuzz::ResolveSomePlans(*program);
  return 0;
}
