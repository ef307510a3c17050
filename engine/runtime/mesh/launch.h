// Launch: the environment variables that place this process among the ranks. Plain data; opens nothing.
// Stage after: DeviceMesh::FromEnvironment, which opens the store and makes the groups.
//
// The first of these whose variables are set, in this order:
//
//   RANK or WORLD_SIZE     torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. With MOONSHARD_STORE, a
//                          file that the ranks of one machine meet in (it must not exist before): RANK, WORLD_SIZE and
//                          optionally LOCAL_RANK; MASTER_ADDR and MASTER_PORT are ignored
//   OMPI_COMM_WORLD_RANK   Open MPI's mpirun, also within a SLURM job: OMPI_COMM_WORLD_SIZE, _LOCAL_RANK and
//                          _LOCAL_SIZE; MASTER_ADDR, or this machine where all ranks are on it; MASTER_PORT, or one
//                          derived from the job's name (PMIX_NAMESPACE)
//   PMI_RANK and           Hydra's mpirun (MPICH, Intel): PMI_SIZE, MPI_LOCALNRANKS; MASTER_ADDR as above; MASTER_PORT.
//   MPI_LOCALRANKID        srun may set PMI_RANK alone
//   SLURM_PROCID           srun: SLURM_NTASKS, SLURM_LOCALID; MASTER_ADDR, or the first host of SLURM_STEP_NODELIST,
//                          else of SLURM_JOB_NODELIST; MASTER_PORT, or one derived from SLURM_JOB_ID
//   none of these          one rank by itself
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "engine/core/base/result.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {

struct Launch {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;  // place among the ranks of this machine: chooses the GPU
  std::string store_file;  // where the ranks meet in a file; else over TCP at host:port; both empty: one rank alone
  std::string host;
  uint16_t port = 0;
  bool serves_store = false;  // this rank opens the TCP store
  bool agent_serves = false;  // the launcher opened it, and it outlives the ranks
  std::string attempt = "0";  // a restart by torchrun meets under new keys
};

// A variable's value, or nothing.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
// The process's own.
std::optional<std::string> ProcessEnvironment(const std::string& name);

// Errors (kBadMesh), all at once: variables that are missing or not numbers, a rank outside the world, and a world that
// is not as large as `shape`.
Result<Launch> ReadLaunch(const Environment& environment, const MeshShape& shape);

// First host of a SLURM node list: "node[03-05,7],x1" gives "node03".
std::string FirstHost(const std::string& node_list);

}  // namespace moonshard
