#include "engine/plan/compile/activation_dims.h"

#include <optional>

namespace moonshard {

bool CutsFeatures(const Layout& layout) { return layout.is_shard() && (layout.dim == -1 || layout.dim == 2); }

bool CutsTokens(const Layout& layout) { return layout.is_shard() && (layout.dim == 1 || layout.dim == -2); }

bool SaysTokens(const ModuleSteps& steps) {
  for (const auto* redistributions : {&steps.inputs, &steps.outputs}) {
    for (const std::optional<Redistribution>& move : *redistributions) {
      if (move && (CutsTokens(move->from[MeshAxis::kTp]) || CutsTokens(move->to[MeshAxis::kTp]))) return true;
    }
  }
  return false;
}

}  // namespace moonshard
