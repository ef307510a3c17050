// An axis is used where any placement along it is not replicate: of a parameter, or on one side of a redistribution,
// since an axis may shard activations alone.
#include "engine/plan/compile/mesh_axes.h"

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace moonshard {
namespace {

// Axes above 1 that no layout is on; not those of a data-parallel section. Ranks along such an axis do the same work
// twice or, with different data, train different models: both run without an error, so it is a finding.
std::vector<MeshAxis> UnusedAxes(const CompiledPlan& plan) {
  std::array<bool, kMeshAxisCount> used = {};
  const auto use = [&](const Placement& placement) {
    for (size_t a = 0; a < kMeshAxisCount; ++a) used[a] |= placement.by_axis[a] != Layout::Replicate();
  };
  for (const ModuleLayouts& layouts : plan.layouts) {
    for (const Placement& placement : layouts.params) use(placement);
    for (const auto* redistributions : {&layouts.inputs, &layouts.outputs}) {
      for (const std::optional<Redistribution>& redistribution : *redistributions) {
        if (!redistribution) continue;
        use(redistribution->from);
        use(redistribution->to);
      }
    }
  }
  std::vector<MeshAxis> out;
  for (const MeshAxis axis : kMeshAxes) {
    const bool of_section = IsDataAxis(axis) && plan.plan->data_parallel;
    // Experts are on ep, and all other parameters are full on each of its ranks.
    const bool used_alone = used[static_cast<size_t>(axis)] && axis != MeshAxis::kEp;
    if (plan.mesh.size(axis) > 1 && !used_alone && !of_section) out.push_back(axis);
  }
  return out;
}

Diagnostic Unused(const CompiledPlan& plan, MeshAxis axis) {
  const std::string name = ToString(axis);
  Diagnostic d;
  if (IsDataAxis(axis)) {
    const bool experts = axis == MeshAxis::kEp && plan.exchanges_tokens();
    d = MakeDiagnostic(Finding::kUnusedAxis, "nothing reduces gradients over mesh axis '" + name +
                                                 "': each rank of the axis trains a separate model" +
                                                 (experts ? ", apart from the experts" : ""));
    d.required = "fsdp { wrap = ... } or ddp {} in the plan, or size 1; inference requires neither";
  } else if (axis == MeshAxis::kTp) {
    d = MakeDiagnostic(Finding::kUnusedAxis, "nothing in the plan uses mesh axis '" + name + "'");
    d.required = "a layout on that axis, or size 1";
  } else {
    const bool context = axis == MeshAxis::kCp;
    const std::string contexts = plan.mesh.cp_heads() > 1 ? "\"ulysses_ring\" }" : "\"ulysses\" } or \"ring\"";
    d = MakeDiagnostic(Finding::kNotSupported,
                       context ? "nothing in the plan uses mesh axis 'cp': each of its ranks would compute the same"
                               : "pipeline parallelism is not supported, and nothing in the plan uses mesh axis 'pp'");
    d.required = context
                     ? "size 1; a plan with transformer.stream { context = " + contexts + "; or a layout on cp (`on`)"
                     : "size 1, or a layout on that axis (`on`)";
  }
  const int64_t heads = axis == MeshAxis::kCp ? plan.mesh.cp_heads() : 1;
  d.declared = name + "=" + std::to_string(plan.mesh.size(axis) / heads) +
               (heads > 1 ? "x" + std::to_string(heads) : std::string());
  return d;
}

}  // namespace

void CheckAxes(const CompiledPlan& plan, Diagnostics& diagnostics) {
  for (const MeshAxis axis : UnusedAxes(plan)) diagnostics.push_back(Unused(plan, axis));
}

Diagnostics IndependentReplicas(const CompiledPlan& plan) {
  Diagnostics found;
  for (const MeshAxis axis : UnusedAxes(plan)) {
    if (IsDataAxis(axis)) found.push_back(Unused(plan, axis));
  }
  return found;
}

}  // namespace moonshard
