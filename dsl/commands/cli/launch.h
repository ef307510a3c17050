// Launch: one process for each local rank of a verb that needs tensors; all end together. Free of LibTorch: a rank is
// the executable moonshard-run, which reads RANK, WORLD_SIZE, LOCAL_RANK and the other variables of its environment,
// and connects through the store that MOONSHARD_STORE names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {

struct LaunchOptions {
  std::string executable;              // path of moonshard-run
  std::vector<std::string> arguments;  // without the executable's name
  int64_t ranks = 1;
  int grace_ms = 3000;  // how long the others may run after one has failed
  // Ranks that end gracefully on a signal: the first signal is forwarded and awaited, a second one ends them at once.
  // They exit with kExitAsked plus the signal number, which is not a failure.
  bool finish_first = false;
};

// The exit code of a rank that a signal stopped is this plus the signal number, as in a shell.
inline constexpr int kExitAsked = 128;

// The largest world size for which one machine does each of these:
int64_t MostLocalRanks();                                    // starts a process per rank: max(64, 16 * cores)
inline constexpr int64_t kMostRankFiles = int64_t{1} << 14;  // writes a file for each
inline constexpr int64_t kMostStepRanks = int64_t{1} << 16;  // runs one rank without peers, or draws all ranks

// An error (kBadMesh) for a mesh of more than `most` ranks; `what` is an infinitive: "start the ranks".
Diagnostics CheckRanks(const MeshShape& mesh, int64_t most, const std::string& what);

// Starts the ranks, forwards rank 0's stderr and buffers that of the others, waits for all, and returns the exit code
// of the executable: 0, or that of the rank that failed first (1 for one that a signal ended), whose stderr is printed.
// No rank outlives this call; SIGINT, SIGTERM and SIGHUP end the ranks first, then this process.
int LaunchRanks(const LaunchOptions& options);

// Whether RANK and WORLD_SIZE, or SLURM's or MPI's names for them, indicate that another launcher started the ranks.
bool StartedByLauncher();

// The path of `name` in the directory of the running executable; it may not exist.
std::string SiblingExecutable(const std::string& name);

}  // namespace moonshard
