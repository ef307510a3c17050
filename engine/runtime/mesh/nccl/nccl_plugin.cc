#include "engine/runtime/mesh/nccl/nccl_plugin.h"

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

c10::intrusive_ptr<c10d::Backend> MakeGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            const std::string& name, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  options->group_name = name;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

}  // namespace
}  // namespace moonshard

extern "C" __attribute__((visibility("default"))) const moonshard::NcclPlugin* MoonshardNcclPlugin() {
  static constexpr moonshard::NcclPlugin kPlugin = {moonshard::DeviceCount, moonshard::SetDevice,
                                                    moonshard::NcclVersion, moonshard::DeviceName,
                                                    moonshard::MakeGroup};
  return &kPlugin;
}
