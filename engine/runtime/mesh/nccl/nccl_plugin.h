// NcclPlugin: the functions of libmoonshard_nccl.so. If every program linked libtorch_cuda.so, a run on the CPU would
// need 0.12 s more to start (0.6 s from a cold disk) and 350 MB more resident memory. Therefore only
// libmoonshard_nccl.so links libtorch_cuda.so, and libmoonshard_nccl.so is opened only if a GPU is used.
#pragma once

#include <chrono>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace moonshard {

struct NcclPlugin {
  // Number of GPUs that are visible to this process; 0 if the driver does not respond.
  int (*device_count)();
  // Makes `device` the calling thread's current device.
  void (*set_device)(int device);
  // The version of the NCCL library that was loaded, as 10000 * major + 100 * minor + patch; 0 if it does not tell.
  int (*nccl_version)();
  // The name of a GPU, such as "NVIDIA H100 80GB HBM3".
  std::string (*device_name)(int device);
  // Makes a NCCL group on the current device. NCCL creates the communicator at the first collective. `timeout`: the
  // longest wait for a peer that PeerWatch allows; c10d's own limit for a collective is longer.
  c10::intrusive_ptr<c10d::Backend> (*make_group)(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                  const std::string& name, std::chrono::milliseconds timeout);
};

}  // namespace moonshard

// The only symbol that is looked up in the library.
extern "C" const moonshard::NcclPlugin* MoonshardNcclPlugin();
