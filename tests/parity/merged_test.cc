// What is compared with transformers itself. Directories that `merge` makes of trained programs (programs/check_merged.py):
// from_pretrained finds every weight under its name, and computes what `eval` computes of the directory. The exporter on
// models of transformers (programs/check_transformers.py).
//
// Shown as skipped where no Python has transformers, which building and testing do not install. MOONSHARD_PYTHON names one
// that has it; else the one that `./dev fixtures` makes is taken, or the first in the PATH.
#include <catch2/catch.hpp>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/skip.h"

namespace moonshard::test {
namespace {

// Runs a script of programs/ with the first Python that has transformers.
void ExpectGoodWithTransformers(const std::string& script, const std::vector<std::string>& arguments) {
  const char* named = std::getenv("MOONSHARD_PYTHON");
  const std::string made = SourcePath("build/fixtures/bin/python");
  std::string why_not = "no Python has transformers (./dev fixtures makes one):";
  for (const std::string& python : {named == nullptr ? made : std::string(named), std::string("python3")}) {
    std::vector<std::string> words = {python, SourcePath("tests/parity/programs/" + script)};
    words.insert(words.end(), arguments.begin(), arguments.end());
    constexpr double kSeconds = 500;
    const Outcome done = RunExecutable("/usr/bin/env", words, {}, kSeconds);
    constexpr int kCannotImport = 77;
    constexpr int kNoSuchProgram = 127;
    if (done.code != kCannotImport && done.code != kNoSuchProgram) {
      INFO(done.ToText());
      CHECK(done.code == 0);
      return;
    }
    why_not += "\n" + done.out + done.err;
  }
  Skip(why_not);
}

TEST_CASE("transformers loads the merged directory of a trained program and computes what eval computes") {
  ExpectGoodWithTransformers("check_merged.py", {ExecutablePath()});
}

TEST_CASE("the exporter records of small models of transformers what their programs need") {
  ExpectGoodWithTransformers("check_transformers.py", {});
}

}  // namespace
}  // namespace moonshard::test
