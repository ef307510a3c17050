// Which device a rank computes on, and NCCL where that is a GPU.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

#include "engine/core/base/result.h"

namespace moonshard {

struct NcclPlugin;

enum class DeviceChoice : uint8_t {
  kAuto,  // a GPU where this build has CUDA and the machine has one; else the CPU
  kCpu,
  kCuda,
};

struct ChosenDevice {
  c10::Device device = c10::Device(c10::kCPU);
  const NcclPlugin* nccl = nullptr;  // for a CUDA device; lives as long as the process
};

// The GPU is number `local_rank`; it becomes the calling thread's current device. The first choice of a GPU loads
// libtorch_cuda.so: make it before anything in the process queries whether LibTorch has CUDA (torch::manual_seed does),
// because LibTorch remembers the answer.
// Errors (kBadMesh): a GPU was requested and this build, or this machine, has none; or fewer than local_rank + 1.
Result<ChosenDevice> ChooseDevice(DeviceChoice choice, int64_t local_rank);

}  // namespace moonshard
