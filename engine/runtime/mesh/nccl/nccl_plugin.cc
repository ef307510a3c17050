#include "engine/runtime/mesh/nccl/nccl_plugin.h"

#include <cstdlib>

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace moonshard {
namespace {

int DeviceCount() { return c10::cuda::device_count(); }

void SetDevice(int device) { c10::cuda::set_device(static_cast<c10::DeviceIndex>(device)); }

int NcclVersion() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

std::string DeviceName(int device) {
  return at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device))->name;
}

// PeerWatch notices ranks that end or hang. c10d's own thread, which ends the process after the timeout and a minute
// more, comes later, and aborts the communicators instead: the rank ends with the error of its next call. An embedder
// who sets the environment variable keeps what it says.
class Group final : public c10d::ProcessGroupNCCL {
 public:
  Group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const c10::intrusive_ptr<Options>& options)
      : ProcessGroupNCCL(store, rank, size, options) {
    if (std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == nullptr) asyncErrorHandling_ = c10d::CleanUpOnly;
  }
};

c10::intrusive_ptr<c10d::Backend> MakeGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            const std::string& name, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = 2 * timeout + std::chrono::minutes(1);
  options->group_name = name;
  return c10::make_intrusive<Group>(store, rank, size, options);
}

}  // namespace
}  // namespace moonshard

extern "C" __attribute__((visibility("default"))) const moonshard::NcclPlugin* MoonshardNcclPlugin() {
  static constexpr moonshard::NcclPlugin kPlugin = {moonshard::DeviceCount, moonshard::SetDevice,
                                                    moonshard::NcclVersion, moonshard::DeviceName,
                                                    moonshard::MakeGroup};
  return &kPlugin;
}
