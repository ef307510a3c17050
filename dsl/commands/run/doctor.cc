#include <cstdio>

#include <torch/version.h>

#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/run/verbs.h"
#include "engine/core/base/visible.h"
#include "engine/runtime/mesh/device.h"
#include "engine/runtime/mesh/nccl/nccl_plugin.h"

namespace moonshard {

int RunDoctor() {
  std::printf("LibTorch  %s\n", TORCH_VERSION);
  const Result<ChosenDevice> cuda = ChooseDevice(DeviceChoice::kCuda, 0);
  if (cuda.ok()) {
    const NcclPlugin& nccl = *cuda.value().nccl;
    const int version = nccl.nccl_version();
    std::printf("CUDA      %d GPUs, the first is %s\n", nccl.device_count(), Visible(nccl.device_name(0)).c_str());
    std::printf("NCCL      %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
  } else {
    std::printf("CUDA      no: %s\n", Visible(cuda.diagnostics().front().message).c_str());
  }
  std::printf("CPU       Gloo\n");
  return kExitSuccess;
}

}  // namespace moonshard
