// Launch: reads the environment variables that assign a rank to this process. Plain data; opens no connections.
// Stage after: DeviceMesh::FromEnvironment, which opens the store and makes the groups.
//
// The launcher is the first of these whose variables are set:
//
//   RANK or WORLD_SIZE     torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. With MOONSHARD_STORE, the
//                          path of a file in which the ranks of one machine meet (it must not exist before): RANK,
//                          WORLD_SIZE and optionally LOCAL_RANK; MASTER_ADDR and MASTER_PORT are ignored
//   OMPI_COMM_WORLD_RANK   Open MPI's mpirun, also within a SLURM job: OMPI_COMM_WORLD_SIZE, _LOCAL_RANK and
//                          _LOCAL_SIZE; MASTER_ADDR, or this machine if all ranks are on it; MASTER_PORT, or a port
//                          derived from the job's name (PMIX_NAMESPACE)
//   PMI_RANK and           Hydra's mpirun (MPICH, Intel): PMI_SIZE, MPI_LOCALNRANKS; MASTER_ADDR as above;
//   MPI_LOCALRANKID        MASTER_PORT. Both are required, because srun may set PMI_RANK alone
//   SLURM_PROCID and       srun: SLURM_NTASKS, SLURM_LOCALID; MASTER_ADDR, or the first host of SLURM_STEP_NODELIST,
//   SLURM_STEP_ID          else of SLURM_JOB_NODELIST; MASTER_PORT, or a port derived from SLURM_JOB_ID. A batch script
//                          and the shell of salloc are not in a step of srun, and no ranks (core/base/launcher.h)
//   none of these          one rank by itself
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/base/launcher.h"
#include "engine/core/base/result.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {

struct Launch {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;  // index among the ranks of this machine: the number of the GPU
  std::string store_file;  // the file in which the ranks meet; "": over TCP at host:port; both empty: one rank
  std::string host;
  uint16_t port = 0;
  bool serves_store = false;  // this rank opens the TCP store
  bool agent_serves = false;  // the launcher has opened the store, which outlives the ranks
  std::string attempt = "0";  // number of restarts by torchrun; each attempt uses other keys of the store
  // Who set the variables: "torchrun" (or RANK and WORLD_SIZE by hand), "moonshard" (the ranks meet in a file), "Open
  // MPI", "MPICH", "SLURM"; "": no launcher.
  std::string launcher;
  // What was read, in the order of reading: the name of each variable that is set, and its value.
  std::vector<std::pair<std::string, std::string>> variables = {};
};

// Reads the variables. Returns all errors (kBadMesh) together: variables that are missing or not usable numbers, a rank
// that is not below the number of ranks, and a number of ranks that differs from the number of ranks of `shape`.
Result<Launch> ReadLaunch(const Environment& environment, const MeshShape& shape);
// The same for as many ranks as the launcher has started.
Result<Launch> ReadLaunch(const Environment& environment);

// Returns LOCAL_RANK, or `rank` if the variable is not set. Errors (kBadMesh): a value that is not a usable number.
Result<int64_t> ReadLocalRank(const Environment& environment, int64_t rank);

// Returns the first host of a SLURM node list: "node03" for "node[03-05,7],x1". Returns "" if a bracket is not closed.
std::string FirstHost(const std::string& node_list);

}  // namespace moonshard
