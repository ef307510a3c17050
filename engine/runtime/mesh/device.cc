// The device of a rank. Asking the CUDA driver whether there is a GPU loads it, into programs that run on the CPU as
// well; so the machine is looked at first, and the library with CUDA in it is opened only where the driver's device
// nodes exist.
#include "engine/runtime/mesh/device.h"

#include <filesystem>
#include <string>

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

Diagnostic NoGpu(const std::string& why) {
  Diagnostic d = MakeDiagnostic(Finding::kBadMesh, "a CUDA device was requested, but none is available");
  d.declared = "device cuda";
  d.required = why;
  d.help = "use the CPU, or a build with CUDA on a machine with a GPU";
  return d;
}

}  // namespace

Result<ChosenDevice> ChooseDevice(DeviceChoice choice, int64_t local_rank) {
  if (choice == DeviceChoice::kCpu || (choice == DeviceChoice::kAuto && !MachineHasGpu())) return ChosenDevice{};
  if (!MachineHasGpu()) return NoGpu("an NVIDIA GPU (no /dev/nvidiactl on this machine)");
  std::string why;
  const NcclPlugin* nccl = LoadPlugin(why);
  const int count = nccl == nullptr ? 0 : nccl->device_count();
  if (count == 0) {
    if (choice == DeviceChoice::kAuto) return ChosenDevice{};
    return NoGpu(nccl == nullptr ? "a build with CUDA, and its libmoonshard_nccl.so (" + why + ")"
                                 : "a GPU that is visible to this process");
  }
  if (local_rank >= count) {
    Diagnostic d = MakeDiagnostic(Finding::kBadMesh, "this machine has fewer GPUs than ranks");
    d.declared = "local rank " + std::to_string(local_rank);
    d.required =
        "a local rank below " + std::to_string(count) + ", the number of GPUs that are visible to this process";
    return d;
  }
  nccl->set_device(static_cast<int>(local_rank));
  return ChosenDevice{c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)), nccl};
}

}  // namespace moonshard
