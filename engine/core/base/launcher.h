// LauncherKind: which launcher started this process as one of several ranks, by the variables of its environment. The
// variables themselves are read in runtime/mesh/launch.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace moonshard {

// Returns the value of a variable, or nothing if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
// Returns the variable `name` of the environment of this process, or nothing if it is not set.
std::optional<std::string> ProcessEnvironment(const std::string& name);

enum class LauncherKind : uint8_t {
  kNone,
  kTorchrun,  // or RANK and WORLD_SIZE by hand
  kOpenMpi,
  kHydra,  // the mpirun of MPICH and Intel
  kSlurm,  // a step of srun
};

// Returns the first launcher of this order whose variables are set; an empty variable counts as not set:
//
//   kTorchrun  RANK or WORLD_SIZE
//   kOpenMpi   OMPI_COMM_WORLD_RANK; before SLURM, because mpirun within a job passes the variables of the job on
//   kHydra     PMI_RANK and MPI_LOCALRANKID; both, because srun may set PMI_RANK alone
//   kSlurm     SLURM_PROCID in a step of srun (IsSlurmStep)
LauncherKind LauncherOf(const Environment& environment);

// Whether SLURM_STEP_ID is the number of a step that srun started. A batch script and the shell of salloc have
// SLURM_PROCID=0 and the SLURM_NTASKS of their job, too, and are no rank: they have no step, or one of the numbers that
// SLURM keeps for itself (batch, extern, interactive: those above SLURM_MAX_NORMAL_STEP_ID).
bool IsSlurmStep(const Environment& environment);

}  // namespace moonshard
