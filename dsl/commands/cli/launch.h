// Launch: starts one process per local rank for a verb that needs tensors, and ends all of them together. Does not link
// LibTorch: a rank is the executable moonshard-run, which reads RANK, WORLD_SIZE, LOCAL_RANK and other variables of its
// environment, and connects to the other ranks through the store file in MOONSHARD_STORE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/core/base/launcher.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {

struct LaunchOptions {
  std::string executable;              // path of moonshard-run
  std::vector<std::string> arguments;  // without the executable's name
  int64_t ranks = 1;
  int grace_ms = 3000;  // how long the other ranks may run after one has failed
  // Whether the ranks end gracefully on a signal: the launcher sends SIGTERM at the first signal and waits for their
  // end; a second signal ends them at once. A rank that ends on request exits with kExitAsked plus the signal number,
  // which is not a failure.
  bool finish_first = false;
};

// The exit code of a rank that a signal stopped is this plus the signal number, as in a shell.
inline constexpr int kExitAsked = 128;

// The largest world size for which one machine does the following:
int64_t MostLocalRanks();                                    // starts a process per rank: max(64, 16 * cores)
inline constexpr int64_t kMostRankFiles = int64_t{1} << 14;  // writes a file per rank
inline constexpr int64_t kMostStepRanks = int64_t{1} << 16;  // simulates a step of one rank, or draws all ranks

// Returns an error (kBadMesh) for a mesh of more than `most` ranks. `what` completes "the mesh has too many ranks to
// ...": "start them on one machine".
Diagnostics CheckRanks(const MeshShape& mesh, int64_t most, const std::string& what);

// Starts the ranks and waits for all of them. Forwards rank 0's stderr and buffers the output of the other ranks.
// Returns 0 if no rank failed. Else prints the output of the rank that failed first and returns its exit code (1 if a
// signal ended it). With `finish_first`, returns the exit code of ranks that ended on request. No rank outlives this
// call; SIGINT, SIGTERM and SIGHUP end the ranks first, then this process.
int LaunchRanks(const LaunchOptions& options);

// Whether another launcher started this process: RANK and WORLD_SIZE are set, or the variables of mpirun or of a step
// of srun (core/base/launcher.h).
bool StartedByLauncher(const Environment& environment = ProcessEnvironment);

// The path of `name` in the directory of the running executable; it may not exist.
std::string SiblingExecutable(const std::string& name);

}  // namespace moonshard
