#include "engine/runtime/mesh/plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <vector>

namespace moonshard {

void* OpenPlugin(const std::string& file, const std::string& built, const char* symbol, std::string& why) {
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::vector<std::string> places = {program / file, program / ".." / "lib" / file, built, file};
  for (const std::string& place : places) {
    if (place.empty() || (place != file && !std::filesystem::exists(place, ignored))) continue;
    void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      why = dlerror();
      continue;
    }
    if (void* address = dlsym(library, symbol)) return address;
    why = place + " has no symbol " + symbol;
  }
  if (why.empty()) why = file + " was not found";
  return nullptr;
}

}  // namespace moonshard
