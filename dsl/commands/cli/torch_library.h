// TorchLibrary: whether the dynamic loader finds the LibTorch that moonshard-run links, checked before a rank is
// started: the loader's own error names a file and nothing to do about it.
#pragma once

#include <optional>
#include <string>

namespace moonshard {

// LibTorch of the build: its version ("2.11.0") and its directory, for messages.
struct TorchOfBuild {
  std::string version;
  std::string root;
};

// Makes sure that `executable` can be loaded. Where a library is missing and MOONSHARD_TORCH_ROOT names a LibTorch of
// the build's version, its lib/ goes in front of LD_LIBRARY_PATH of this process, which the ranks inherit. Returns what
// to tell the user where libraries are missing still; nothing where the executable can start.
std::optional<std::string> WhyNotLoaded(const std::string& executable, const TorchOfBuild& torch);

}  // namespace moonshard
