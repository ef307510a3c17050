// The texts of an exported program (program_texts.h): reading them, and resolving some plans of the program.
#include "tests/fuzz/program_checks.h"
#include "tests/fuzz/program_texts.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  const Result<ProgramArchive> archive = fuzz::ArchiveOf(fuzz::TextOf(data, size));
  fuzz::Require(archive.ok(), "an archive that is none");
  const Result<ExportedProgram> program = ReadProgram(archive.value());
  if (!program.ok()) {
    fuzz::RequireReason(program.diagnostics());
    return 0;
  }
  fuzz::RequireConsistent(program.value());
  fuzz::ResolveSomePlans(program.value());
  return 0;
}
