// The texts of an exported program (program_texts.h): compiling the graph and making the modules, with parameters on the
// meta device. A program that is refused has errors with messages; no exception leaves.
#include <memory>
#include <utility>

#include "engine/models/program/program.h"
#include "tests/fuzz/program_texts.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  const Result<ProgramArchive> archive = fuzz::ArchiveOf(fuzz::TextOf(data, size));
  fuzz::Require(archive.ok(), "an archive that is none");
  Result<ExportedProgram> read = ReadProgram(archive.value());
  if (!read.ok()) return 0;
  const auto program = std::make_shared<const ExportedProgram>(std::move(read).value());
  const Result<std::shared_ptr<Program>> made = Program::FromArchive(archive.value(), program);
  if (!made.ok()) {
    fuzz::Require(HasErrors(made.diagnostics()), "refused without an error");
    for (const Diagnostic& d : made.diagnostics()) fuzz::Require(!d.message.empty(), "an error without a message");
    return 0;
  }
  fuzz::Require(made.value()->modules().size() == program->modules.size(), "modules that the program does not have");
  fuzz::Require(made.value()->inputs().size() == program->inputs.size(), "inputs that the program does not have");
  return 0;
}
