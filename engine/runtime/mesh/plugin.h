// OpenPlugin: a library of moonshard's own that is opened at run time, because only a machine with a GPU needs it
// (mesh/nccl, loss/cuda).
#pragma once

#include <string>

namespace moonshard {

// The address of `symbol` in the library `file` ("libmoonshard_nccl.so"), which stays open: looked for beside the
// program, in ../lib, at `built` (the build tree's file, which serves tests; may be empty), and where the system finds
// libraries. nullptr where there is none, with the reason in `why`.
void* OpenPlugin(const std::string& file, const std::string& built, const char* symbol, std::string& why);

}  // namespace moonshard
