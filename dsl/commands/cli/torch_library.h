// TorchLibrary: checks that the dynamic loader finds the LibTorch that moonshard-run links, before a rank is started.
// The loader's own error names a missing file but no fix.
#pragma once

#include <optional>
#include <string>

namespace moonshard {

// The LibTorch that the build used: its version ("2.11.0") and its directory, for messages.
struct TorchOfBuild {
  std::string version;
  std::string root;
};

// Checks that the libraries of `executable` are found. If a library is missing and MOONSHARD_TORCH_ROOT names a
// LibTorch of the build's version, puts its lib/ at the front of LD_LIBRARY_PATH of this process, which the ranks
// inherit. Returns a message for the user if libraries are still missing, else nothing.
std::optional<std::string> WhyNotLoaded(const std::string& executable, const TorchOfBuild& torch);

}  // namespace moonshard
