// Device: the device on which a rank computes, and NCCL if that device is a GPU.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

#include "engine/core/base/result.h"

namespace moonshard {

struct NcclPlugin;

enum class DeviceChoice : uint8_t {
  kAuto,  // a GPU if this build has CUDA and the machine has a GPU; else the CPU
  kCpu,
  kCuda,
};

// The library that communicates between ranks.
enum class Backend : uint8_t {
  kAuto,  // NCCL for ranks on GPUs, Gloo for ranks on the CPU
  kGloo,  // also for ranks on GPUs: tensors are copied through host memory, and ranks may share a GPU
  kNccl,
};

struct ChosenDevice {
  c10::Device device = c10::Device(c10::kCPU);
  const NcclPlugin* nccl = nullptr;  // valid until the process ends; null if the backend is Gloo
};

// Chooses the device of a rank. A rank on a GPU gets GPU number `local_rank` of this machine, which becomes the current
// device of the calling thread. If there are fewer GPUs than ranks, ranks share a GPU (`local_rank` modulo the number
// of GPUs) where the backend can do that: Gloo, or NCCL 2.30 or later with NCCL_MULTI_RANK_GPU_ENABLE=1 in the
// environment. The first choice of a GPU loads libtorch_cuda.so. Call ChooseDevice before any code in the process (for
// example torch::manual_seed) queries whether LibTorch has CUDA, because LibTorch caches the result. Errors (kBadMesh):
// a GPU or NCCL was requested, but this build has no CUDA or this machine has no GPU; NCCL was requested for ranks on
// the CPU; a GPU was chosen, but the machine has at most `local_rank` GPUs and the backend lets no ranks share one.
Result<ChosenDevice> ChooseDevice(DeviceChoice choice, int64_t local_rank, Backend backend = Backend::kAuto);

}  // namespace moonshard
