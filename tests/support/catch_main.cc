// main() of the test programs. MOONSHARD_WITHOUT_TAG=TAG leaves out the tests of that tag, whatever the command
// line selects: `./dev test --as` computes as another processor, and leaves out [float64], tests that compare this
// machine with itself in float64, where no processor's order of sums reaches the bounds.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include <cstdlib>
#include <string>

#include "tests/support/skip.h"

int main(int argc, char** argv) {
  // c10d's flight recorder is not made for ranks that are threads: it crashes. Read when the first group is made.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  Catch::Session session;
  if (const int wrong = session.applyCommandLine(argc, argv); wrong != 0) return wrong;
  if (const char* tag = std::getenv("MOONSHARD_WITHOUT_TAG"); tag != nullptr) {
    auto& selected = session.configData().testsOrTags;  // Catch joins them with commas: alternatives
    std::string alternatives;
    for (const std::string& words : selected) alternatives += (alternatives.empty() ? "" : ",") + words;
    const std::string without = std::string("~[") + tag + "]";
    std::string all;
    for (const char letter : alternatives) {
      if (letter == ',' && !all.ends_with('\\')) all += without;  // not the comma of a name
      all += letter;
    }
    selected = {all + without};
  }
  const int failed = session.run();
  return failed == 0 && moonshard::test::Skipped() ? moonshard::test::kSkippedCode : failed;
}
