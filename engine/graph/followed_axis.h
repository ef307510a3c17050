// The mesh axis along which the sizes of an exported program are followed under a plan: tp, or cp if the plan shards
// the sequence on it. Both at once are refused (program_checks.h): the heads of a layout on cp are those that tp
// leaves, so that neither axis can be followed without the other.
#pragma once

#include <cstddef>
#include <optional>

#include "engine/layout/layout.h"
#include "engine/layout/mesh_shape.h"
#include "engine/plan/compile/compiled_plan.h"

namespace moonshard {

// Returns nullopt if the axis has one rank.
inline std::optional<MeshAxis> FollowedAxis(const CompiledPlan& plan) {
  if (plan.context_parallel) return MeshAxis::kCp;
  return plan.mesh.size(MeshAxis::kTp) > 1 ? std::optional(MeshAxis::kTp) : std::nullopt;
}

// Returns the layout along a followed axis of parameter `index` as the operators see it. Along cp a parameter is full
// while its module is called: what `fsdp` shards over cp is gathered before.
inline Layout FollowedParameter(const ModuleLayouts& layouts, size_t index, MeshAxis axis) {
  return axis == MeshAxis::kCp ? Layout::Shared() : layouts.params[index][axis];
}

}  // namespace moonshard
