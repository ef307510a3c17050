#include <cstdio>

#include <torch/version.h>

#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/run/verbs.h"
#include "engine/core/base/visible.h"
#include "engine/runtime/mesh/device.h"

namespace moonshard {

int RunDoctor() {
  std::printf("LibTorch  %s\n", TORCH_VERSION);
  const Result<ChosenDevice> cuda = ChooseDevice(DeviceChoice::kCuda, 0);
  if (cuda.ok()) {
    std::printf("CUDA      %s, with NCCL\n", cuda.value().device.str().c_str());
  } else {
    std::printf("CUDA      no: %s\n", Visible(cuda.diagnostics().front().message).c_str());
  }
  std::printf("CPU       Gloo\n");
  return kExitSuccess;
}

}  // namespace moonshard
