// NCCL on a real GPU: one rank, because NCCL takes one rank a device. Skipped where no device is.
#include <catch2/catch.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "engine/runtime/mesh/device.h"
#include "engine/runtime/mesh/mesh_group.h"
#include "engine/runtime/mesh/nccl/nccl_plugin.h"
#include "tests/support/skip.h"

namespace moonshard {
namespace {

TEST_CASE("NCCL reduces on the GPU of the local rank") {
  const Result<ChosenDevice> chosen = ChooseDevice(DeviceChoice::kCuda, 0);
  if (!chosen.ok()) {
    CHECK(chosen.diagnostics()[0].finding == Finding::kBadMesh);
    test::Skip("no CUDA device: " + chosen.diagnostics()[0].required);
    return;
  }
  REQUIRE(chosen.value().device.is_cuda());
  const auto group =
      chosen.value().nccl->make_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, "tp[0]", std::chrono::seconds(60));
  std::vector<at::Tensor> tensors = {at::full({1024}, 3.0, at::TensorOptions(chosen.value().device))};
  group->allreduce(tensors)->wait();
  CHECK(tensors[0].eq(3).all().item<bool>());
  const Result<ChosenDevice> beyond = ChooseDevice(DeviceChoice::kCuda, 1000);
  REQUIRE_FALSE(beyond.ok());
  CHECK(beyond.diagnostics()[0].message.find("fewer GPUs") != std::string::npos);
}

}  // namespace
}  // namespace moonshard
