// Gradient terms: which parts of a parameter's gradient must be summed, and over which ranks, because each of these
// ranks adds its own share. apply/ hands them to layout/gradient_sum.h; cost.h prices them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/layout/layout.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {

// Ranks at consecutive coordinates of an axis.
struct GradientGroup {
  MeshAxis axis = MeshAxis::kTp;
  int64_t ranks = 1;
  auto operator<=>(const GradientGroup&) const = default;
};

struct GradientTerm {
  GradientGroup group;
  int dim = -1;  // -1: the whole gradient
  // Of `dim`, within this rank's shard: a part of a fused weight whose heads several ranks hold.
  int64_t begin = 0;
  int64_t length = 0;
  bool operator==(const GradientTerm&) const = default;
};

// Of a parameter of this whole shape on `rank` of the mesh: for a `shared` one the axis, for heads that are fewer than
// ranks the ranks that hold the same head. Empty where the gradient needs no sum. Every rank has as many terms of the same
// groups and lengths. Several axes bring a term each, tp's first. The placement has been compiled.
std::vector<GradientTerm> GradientTermsOf(const std::vector<int64_t>& shape, const Placement& placement,
                                          const MeshShape& mesh, int64_t rank);

}  // namespace moonshard
