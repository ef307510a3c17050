// The device of a rank. Asking the CUDA driver whether there is a GPU loads it, into programs that run on the CPU as
// well; so the machine is looked at first, and the library with CUDA in it is opened only where the driver's device
// nodes exist.
#include "engine/runtime/mesh/device.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "engine/runtime/mesh/nccl/nccl_plugin.h"
#include "engine/runtime/mesh/plugin.h"

namespace moonshard {
namespace {

// Whether the machine shows a GPU, without loading CUDA: the driver's device nodes (on WSL, its bridge).
bool MachineHasGpu() {
  std::error_code ignored;
  return std::filesystem::exists("/dev/nvidiactl", ignored) || std::filesystem::exists("/dev/dxg", ignored);
}

// The plug-in, or why there is none in `why`.
const NcclPlugin* LoadPlugin(std::string& why) {
#ifdef MOONSHARD_NCCL_LIBRARY
  if (void* symbol = OpenPlugin("libmoonshard_nccl.so", MOONSHARD_NCCL_LIBRARY, "MoonshardNcclPlugin", why)) {
    return reinterpret_cast<const NcclPlugin* (*)()>(symbol)();
  }
#else
  why = "this build was made without CUDA";
#endif
  return nullptr;
}

Diagnostic NoGpu(DeviceChoice choice, const std::string& why) {
  const bool device = choice == DeviceChoice::kCuda;
  Diagnostic d = MakeDiagnostic(Finding::kBadMesh, device ? "a CUDA device was requested, but none is available"
                                                          : "NCCL was requested, but no CUDA device is available");
  d.declared = device ? "device cuda" : "backend nccl";
  d.required = why;
  d.help = "use the CPU" + std::string(device ? "" : " and Gloo") + ", or a build with CUDA on a machine with a GPU";
  return d;
}

// NCCL refuses ranks that share a GPU unless it is told to accept them; older versions cannot.
bool NcclSharesGpus(const NcclPlugin& nccl) {
  const char* enabled = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  constexpr int kFirstVersion = 23000;
  return enabled != nullptr && std::string_view(enabled) == "1" && nccl.nccl_version() >= kFirstVersion;
}

}  // namespace

Result<ChosenDevice> ChooseDevice(DeviceChoice choice, int64_t local_rank, Backend backend) {
  if (choice == DeviceChoice::kCpu && backend == Backend::kNccl) {
    Diagnostic d = MakeDiagnostic(Finding::kBadMesh, "NCCL communicates tensors on GPUs only");
    d.declared = "device cpu, backend nccl";
    d.required = "backend gloo, or device cuda";
    return d;
  }
  const bool needs_gpu = choice == DeviceChoice::kCuda || backend == Backend::kNccl;
  if (choice == DeviceChoice::kCpu || (!needs_gpu && !MachineHasGpu())) return ChosenDevice{};
  if (!MachineHasGpu()) return NoGpu(choice, "an NVIDIA GPU (no /dev/nvidiactl on this machine)");
  std::string why;
  const NcclPlugin* nccl = LoadPlugin(why);
  const int count = nccl == nullptr ? 0 : nccl->device_count();
  if (count == 0) {
    if (!needs_gpu) return ChosenDevice{};
    return NoGpu(choice, nccl == nullptr ? "a build with CUDA, and its libmoonshard_nccl.so (" + why + ")"
                                         : "a GPU that is visible to this process");
  }
  if (local_rank >= count && backend != Backend::kGloo && !NcclSharesGpus(*nccl)) {
    Diagnostic d = MakeDiagnostic(Finding::kBadMesh, "this machine has fewer GPUs than ranks");
    d.declared = "local rank " + std::to_string(local_rank);
    d.required =
        "a local rank below " + std::to_string(count) + ", the number of GPUs that are visible to this process";
    d.help =
        "ranks can share a GPU over Gloo (backend gloo); over NCCL with version 2.30 or later and "
        "NCCL_MULTI_RANK_GPU_ENABLE=1";
    return d;
  }
  const auto index = static_cast<c10::DeviceIndex>(local_rank % count);
  nccl->set_device(index);
  return ChosenDevice{c10::Device(c10::kCUDA, index), backend == Backend::kGloo ? nullptr : nccl};
}

}  // namespace moonshard
