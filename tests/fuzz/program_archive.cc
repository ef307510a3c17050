// The bytes of an exported program. What is accepted names entries that can be read or are damaged, and no byte outside
// of them.
#include "engine/io/exported_program/program_archive.h"

#include "engine/io/exported_program/zip_offsets.h"
#include "tests/fuzz/program_checks.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  const auto offsets = ZipOffsetsOfBytes(fuzz::TextOf(data, size), "fuzz.pt2");
  if (!offsets.ok()) {
    fuzz::RequireReason(offsets.diagnostics());
  } else {
    for (const auto& [entry, offset] : offsets.value()) fuzz::Require(offset <= size, "an entry outside of the file");
  }
  const Result<ProgramArchive> archive = ProgramArchive::FromBytes(std::string(fuzz::TextOf(data, size)), "fuzz.pt2");
  if (!archive.ok()) {
    fuzz::RequireReason(archive.diagnostics());
    return 0;
  }
  for (const std::string& entry : archive.value().entries()) {
    const Result<std::string> bytes = archive.value().Read(entry);
    if (!bytes.ok()) {
      fuzz::RequireReason(bytes.diagnostics());
    } else {
      fuzz::Require(bytes.value().size() == archive.value().BytesOf(entry) && bytes.value().size() <= size,
                    "an entry of another length");
    }
  }
  const Result<ExportedProgram> program = ReadProgram(archive.value());
  if (program.ok()) {
    fuzz::RequireConsistent(program.value());
    fuzz::ResolveSomePlans(program.value());
  } else {
    fuzz::RequireReason(program.diagnostics());
  }
  return 0;
}
