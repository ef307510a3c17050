#include "engine/plan/compile/mesh_axes.h"

#include <array>
#include <optional>
#include <string>

namespace moonshard {
namespace {

std::array<bool, kMeshAxisCount> UsedAxes(const CompiledPlan& plan) {
  std::array<bool, kMeshAxisCount> used = {};
  const auto use = [&](const Placement& placement) {
    for (size_t a = 0; a < kMeshAxisCount; ++a) used[a] |= placement.by_axis[a] != Layout::Replicate();
  };
  for (const ModuleSteps& steps : plan.steps) {
    for (const Placement& placement : steps.params) use(placement);
    for (const auto* redistributions : {&steps.inputs, &steps.outputs}) {
      for (const std::optional<Redistribution>& redistribution : *redistributions) {
        if (!redistribution) continue;
        use(redistribution->from);
        use(redistribution->to);
      }
    }
  }
  return used;
}

bool IsDataParallel(MeshAxis axis) { return axis == MeshAxis::kDpReplicate || axis == MeshAxis::kDpShard; }

Diagnostic Unused(const CompiledPlan& plan, MeshAxis axis) {
  const std::string name = ToString(axis);
  Diagnostic d;
  if (IsDataParallel(axis)) {
    d = MakeDiagnostic(Finding::kUnusedAxis, "nothing reduces gradients over mesh axis '" + name +
                                                 "': each of its ranks trains its own model");
    d.required = "fsdp { wrap = ... } or ddp {} in the plan, or inference only, or size 1";
  } else if (axis == MeshAxis::kTp) {
    d = MakeDiagnostic(Finding::kUnusedAxis, "nothing in the plan uses mesh axis '" + name + "'");
    d.required = "a layout on that axis, or size 1";
  } else {
    d = MakeDiagnostic(Finding::kNotSupported,
                       axis == MeshAxis::kPp
                           ? "pipeline parallelism is not supported: nothing in the plan uses mesh axis 'pp'"
                           : "context parallelism is not supported: nothing in the plan uses mesh axis 'cp'");
    d.required = "size 1, or a layout on that axis (`on`)";
  }
  d.declared = name + "=" + std::to_string(plan.mesh.size(axis));
  return d;
}

}  // namespace

void CheckAxes(const CompiledPlan& plan, Diagnostics& diagnostics) {
  const std::array<bool, kMeshAxisCount> used = UsedAxes(plan);
  for (const MeshAxis axis : kMeshAxes) {
    if (plan.mesh.size(axis) == 1 || used[static_cast<size_t>(axis)]) continue;
    if (IsDataParallel(axis) && plan.plan->data_parallel) continue;
    diagnostics.push_back(Unused(plan, axis));
  }
}

Diagnostics IndependentReplicas(const CompiledPlan& plan) {
  Diagnostics found;
  if (plan.plan->data_parallel) return found;
  const std::array<bool, kMeshAxisCount> used = UsedAxes(plan);
  for (const MeshAxis axis : kMeshAxes) {
    if (!IsDataParallel(axis) || plan.mesh.size(axis) == 1 || used[static_cast<size_t>(axis)]) continue;
    found.push_back(Unused(plan, axis));
  }
  return found;
}

}  // namespace moonshard
