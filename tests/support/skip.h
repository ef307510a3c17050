// Skip: what this machine cannot test (no GPU, no browser, no such locale). A case calls it and returns.
//
// The program then ends with kSkippedCode, unless a check failed: ctest shows the entry as skipped, so such a case is
// an entry of its own (APART in tests/CMakeLists.txt), and a failure beside it stays one.
#pragma once

#include <string>

namespace moonshard::test {

constexpr int kSkippedCode = 77;  // as automake has it; SKIP_RETURN_CODE in tests/CMakeLists.txt

// Prints `reason` and remembers that something was skipped. Throws if MOONSHARD_REQUIRE_GPU=1 is set: on a machine with a
// GPU a test that finds none is a failure.
void Skip(const std::string& reason);
bool Skipped();

}  // namespace moonshard::test
