// What libmoonshard_nccl.so offers to the mesh. Linking libtorch_cuda.so into every program would cost a CPU run 0.12 s
// of start-up (0.6 s from a cold disk) and 350 MB of resident memory, so it is opened only where a GPU is used.
#pragma once

#include <chrono>
#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace moonshard {

struct NcclPlugin {
  // GPUs that this process sees; 0 where the driver does not answer.
  int (*device_count)();
  // Makes `device` the calling thread's current device.
  void (*set_device)(int device);
  // A group over NCCL on the current device; its communicator is made at the first collective.
  c10::intrusive_ptr<c10d::Backend> (*make_group)(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                  const std::string& name, std::chrono::milliseconds timeout);
};

}  // namespace moonshard

// The one symbol that is looked up.
extern "C" const moonshard::NcclPlugin* MoonshardNcclPlugin();
