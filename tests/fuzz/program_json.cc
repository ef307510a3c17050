// The texts in an exported program, a line each: the graph, the exporter's record, the tables of weights and of
// constants. They are packed with entries of 0 and of 32 bytes for values.
#include "engine/core/base/text.h"
#include "engine/io/exported_program/program_archive.h"
#include "tests/engine/io/exported_program/stored_zip.h"
#include "tests/fuzz/program_checks.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  const std::vector<std::string> texts = Split(fuzz::TextOf(data, size), '\n');
  const auto text = [&](size_t i) { return i < texts.size() ? texts[i] : std::string(); };
  constexpr size_t kConstantBytes = 32;
  std::vector<test::ZipEntry> entries = {{"x/models/model.json", text(0)},
                                         {"x/extra/moonshard.json", text(1)},
                                         {"x/data/weights/w", ""},
                                         {"x/data/constants/c", std::string(kConstantBytes, '\x3f')}};
  if (!text(2).empty()) entries.push_back({"x/data/weights/model_weights_config.json", text(2)});
  if (!text(3).empty()) entries.push_back({"x/data/constants/model_constants_config.json", text(3)});
  const Result<ProgramArchive> archive = ProgramArchive::FromBytes(test::StoredZip(entries), "fuzz.pt2");
  fuzz::Require(archive.ok(), "an archive that is none");
  const Result<ExportedProgram> program = ReadProgram(archive.value());
  if (!program.ok()) {
    fuzz::RequireReason(program.diagnostics());
    return 0;
  }
  fuzz::RequireConsistent(program.value());
  fuzz::ResolveSomePlan(program.value());
  return 0;
}
