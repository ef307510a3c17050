// A command line: words, one per line. Whatever they are, there is a verb to run, or a text to print and the exit code
// to end with.
#include "dsl/commands/cli/options.h"

#include <algorithm>

#include "engine/core/base/text.h"
#include "tests/fuzz/target.h"

namespace moonshard {
namespace {

// The one error that is thrown: where the exporter of PyTorch models is depends on where the program lies.
bool IsOfExporter(const PlanError& error) {
  return error.diagnostics().size() == 1 && error.diagnostics().front().finding == Finding::kFileNotFound &&
         error.diagnostics().front().path.ends_with(".py");
}

}  // namespace
}  // namespace moonshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moonshard;
  constexpr size_t kMostWords = 64;
  std::vector<std::string> words = Split(fuzz::TextOf(data, size), '\n');
  words.resize(std::min(words.size(), kMostWords));
  CommandLine line;
  try {
    line = ParseCommandLine(words);
  } catch (const PlanError& error) {
    fuzz::Require(IsOfExporter(error), "thrown: " + std::string(error.what()));
    return 0;
  }
  fuzz::Require(line.exit_code == 0 || line.exit_code == 2, "the exit code " + std::to_string(line.exit_code));
  fuzz::Require(line.verb || !line.text.empty(), "neither a verb nor a text");
  fuzz::Require(!line.verb || line.exit_code == 0, "a verb of a command line with an error");
  if (line.verb) FindingsOutputOf(*line.verb);
  return 0;
}
