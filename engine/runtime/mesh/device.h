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

// Chooses the device of a rank. A rank on a GPU gets GPU number `local_rank` of this machine, which becomes the current
// device of the calling thread. The first choice of a GPU loads libtorch_cuda.so. Call ChooseDevice before any code in
// the process (for example torch::manual_seed) queries whether LibTorch has CUDA, because LibTorch caches the result.
// Errors (kBadMesh): a GPU was requested, but this build has no CUDA or this machine has no GPU; a GPU was chosen, but
// the machine has at most `local_rank` GPUs.
Result<ChosenDevice> ChooseDevice(DeviceChoice choice, int64_t local_rank);

}  // namespace moonshard
