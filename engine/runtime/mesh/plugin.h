// OpenPlugin: opens, at run time, a shared library of moonshard that is needed only on machines with a GPU (mesh/nccl,
// loss/cuda).
#pragma once

#include <string>

namespace moonshard {

// Opens the shared library `file` ("libmoonshard_nccl.so") and returns the address of `symbol`. Returns nullptr on
// failure, with the reason in `why`. Searches in this order: the executable's directory, ../lib relative to it, `built`
// (a path in the build tree, for tests; may be empty), the system's library path. The library is never closed.
void* OpenPlugin(const std::string& file, const std::string& built, const char* symbol, std::string& why);

}  // namespace moonshard
