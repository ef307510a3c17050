// OpenPlugin: a library of moonshard's own that is opened at run time, because only a machine with a GPU needs it
// (mesh/nccl, loss/cuda).
#pragma once

#include <string>

namespace moonshard {

// Opens the shared library `file` ("libmoonshard_nccl.so") and returns the address of `symbol`, or nullptr with the
// reason in `why`. Searched in this order: the executable's directory, ../lib from there, `built` (a path in the build
// tree, for tests; may be empty), the system's library path. The library is never closed.
void* OpenPlugin(const std::string& file, const std::string& built, const char* symbol, std::string& why);

}  // namespace moonshard
