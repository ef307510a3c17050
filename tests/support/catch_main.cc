// main() of the test programs.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include <cstdlib>

#include "tests/support/skip.h"

int main(int argc, char** argv) {
  // c10d's flight recorder is not made for ranks that are threads: it crashes. Read when the first group is made.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  const int failed = Catch::Session().run(argc, argv);
  return failed == 0 && moonshard::test::Skipped() ? moonshard::test::kSkippedCode : failed;
}
