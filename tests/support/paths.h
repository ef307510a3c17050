// Paths: where the checkout and the programs built of it are. The paths are in one object file (paths.cc), so that all
// other tests compile to the same bytes in every checkout and a compiler cache serves them all.
#pragma once

#include <string>
#include <string_view>

namespace moonshard::test {

// The absolute path of `path` in the checkout ("tests/parity/llama_gqa"); of its root without one.
std::string SourcePath(std::string_view path = {});
// The built `moonshard` and `moonshard-run`.
std::string ExecutablePath();
std::string RankExecutablePath();

}  // namespace moonshard::test
