#include "engine/runtime/apply/local_shard.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>

#include "engine/plan/compile/local_shape.h"

namespace moonshard {
namespace {

// The shards of a unit that fsdp offloads are in host memory; on the meta device there is no memory to choose.
c10::Device DeviceOf(const LiveParameter& parameter, const CompiledPlan& plan, const DeviceMesh& mesh) {
  const std::vector<MeshAxis> axes = plan.unit_settings.axes.axes();
  const bool of_unit = std::ranges::any_of(axes, [&](MeshAxis axis) { return parameter.placement[axis].is_shard(); });
  const bool offloads = plan.unit_settings.offload && of_unit && !mesh.device().is_meta();
  return offloads ? c10::Device(c10::kCPU) : mesh.device();
}

}  // namespace

// Three cases. Deferred: storage of the shard's size and no values, so that the full tensor never has memory anywhere.
// Full and already in its place: undefined, and the parameter keeps its memory. Else a copy, even where a narrow would
// do: a view would keep the memory of the full tensor, which sharding is there to free.
at::Tensor LocalShard(const LiveParameter& parameter, const CompiledPlan& plan, const DeviceMesh& mesh,
                      const std::optional<c10::ScalarType>& deferred_type) {
  const bool meta = parameter.tensor.is_meta();
  const c10::Device device = DeviceOf(parameter, plan, mesh);
  if (meta) {
    at::TensorOptions type = parameter.tensor.options().requires_grad(false).device(device);
    if (deferred_type && parameter.tensor.is_floating_point()) type = type.dtype(*deferred_type);
    return at::empty(LocalShape(parameter.shape, parameter.placement, plan.mesh, mesh.rank()), type);
  }
  const std::vector<std::vector<Interval>> dims =
      LocalIntervals(parameter.shape, parameter.placement, plan.mesh, mesh.rank());
  const bool full = LocalShape(parameter.shape, parameter.placement, plan.mesh, mesh.rank()) == parameter.shape;
  if (full && parameter.tensor.device() == device) return {};
  return SliceShard(parameter.tensor, dims).to(device);
}

}  // namespace moonshard
