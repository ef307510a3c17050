// Launch: one process for each local rank of a verb that needs tensors, all gone together. Torch-free: a rank is the
// program moonshard-run, which finds its place in RANK, WORLD_SIZE, LOCAL_RANK and the others through the store that
// MOONSHARD_STORE names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moonshard {

struct LaunchOptions {
  std::string program;                 // path of moonshard-run
  std::vector<std::string> arguments;  // without the program's name
  int64_t ranks = 1;
  int grace_ms = 3000;  // how long the others have to end by themselves once one has failed
  // Ranks that finish what they do when they are asked to end: the first signal is passed on and waited for, a second one
  // ends them at once. They then end with kExitAsked and more, which is no failure.
  bool finish_first = false;
};

// A rank that stopped because a signal asked it to ends with this plus the signal's number, as a shell says it.
inline constexpr int kExitAsked = 128;

// Starts the ranks, passes rank 0's stderr on as it comes and keeps the others', waits for all, and returns the exit code
// of the program: 0, or that of the rank that failed first (1 for one that a signal ended), whose stderr is shown. No
// rank outlives this call, whatever happens to it; SIGINT, SIGTERM and SIGHUP end the ranks first, then this process.
int LaunchRanks(const LaunchOptions& options);

// Whether RANK and WORLD_SIZE, or SLURM's or MPI's names for them, say that somebody else started the ranks.
bool StartedByLauncher();

// The program `name` beside the running one.
std::string SiblingProgram(const std::string& name);

}  // namespace moonshard
