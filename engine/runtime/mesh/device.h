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

struct ChosenDevice {
  c10::Device device = c10::Device(c10::kCPU);
  const NcclPlugin* nccl = nullptr;  // for a CUDA device; valid until the process ends; null on the CPU
};

// Chooses the device of a rank. The GPU is number `local_rank` of this machine, and becomes the calling thread's
// current device. The first choice of a GPU loads libtorch_cuda.so. Call it before anything in the process queries
// whether LibTorch has CUDA (torch::manual_seed does), because LibTorch caches the answer.
// Errors (kBadMesh): a GPU was requested, and this build or this machine has none; a GPU was chosen, and the machine
// has fewer than local_rank + 1.
Result<ChosenDevice> ChooseDevice(DeviceChoice choice, int64_t local_rank);

}  // namespace moonshard
