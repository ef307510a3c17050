// The dynamic loader itself answers: with LD_TRACE_LOADED_OBJECTS it lists what it would load and where it finds it,
// and starts nothing (what ldd does). So run paths, LD_LIBRARY_PATH and the cache of the system count as they will
// count, and no second search of our own can differ from it.
#include "dsl/commands/cli/torch_library.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <vector>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

std::string QuotedForShell(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// Libraries that the loader does not find: of lines such as "libtorch_cpu.so => not found".
std::vector<std::string> MissingLibraries(const std::string& executable) {
  const std::string command = "LD_TRACE_LOADED_OBJECTS=1 exec " + QuotedForShell(executable) + " 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::vector<std::string> missing;
  char line[4096];
  while (pipe != nullptr && std::fgets(line, sizeof(line), pipe.get()) != nullptr) {
    const std::string text(line);
    const size_t arrow = text.find(" => not found");
    if (arrow == std::string::npos) continue;
    missing.push_back(text.substr(text.find_first_not_of("\t "), arrow - text.find_first_not_of("\t ")));
  }
  return missing;
}

// "2.11.0" by the headers of a LibTorch; "" where they are not there.
std::string TorchVersionIn(const std::string& root) {
  for (const char* header :
       {"/include/torch/headeronly/version.h", "/include/torch/csrc/api/include/torch/version.h"}) {
    std::ifstream file(root + header);
    std::string version;
    std::string line;
    while (std::getline(file, line)) {
      for (const char* name : {"MAJOR", "MINOR", "PATCH"}) {
        const std::string define = std::string("#define TORCH_VERSION_") + name + " ";
        if (line.starts_with(define)) version += (version.empty() ? "" : ".") + line.substr(define.size());
      }
    }
    if (!version.empty()) return version;
  }
  return "";
}

}  // namespace

std::optional<std::string> WhyNotLoaded(const std::string& executable, const TorchOfBuild& torch) {
  std::vector<std::string> missing = MissingLibraries(executable);
  if (missing.empty()) return std::nullopt;
  const char* given = std::getenv("MOONSHARD_TORCH_ROOT");
  std::string why_not_given;
  if (given != nullptr && *given != '\0') {
    const std::string root = given;
    const std::string version = TorchVersionIn(root);
    if (!version.empty() && version != torch.version) {
      why_not_given = "MOONSHARD_TORCH_ROOT=" + root + " is LibTorch " + version + "\n";
    } else {
      const char* before = std::getenv("LD_LIBRARY_PATH");
      const std::string path = root + "/lib" + (before == nullptr || *before == '\0' ? "" : ":" + std::string(before));
      setenv("LD_LIBRARY_PATH", path.c_str(), 1);
      missing = MissingLibraries(executable);
      if (missing.empty()) return std::nullopt;
      why_not_given = "MOONSHARD_TORCH_ROOT=" + root + ": its lib/ does not have all of these libraries\n";
    }
  }
  return executable + " cannot be started: the dynamic loader does not find " + Join(missing, ", ") + "\n" +
         why_not_given + "The executable was built with LibTorch " + torch.version + " in " + torch.root +
         ". Set MOONSHARD_TORCH_ROOT to the directory of that LibTorch (it has lib/libtorch_cpu.so), or "
         "LD_LIBRARY_PATH to its lib/.\n";
}

}  // namespace moonshard
