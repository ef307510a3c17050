#include "engine/runtime/redistribute/defined_gradient.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include "engine/core/base/result.h"

namespace moonshard {

at::Tensor DefinedGradient(at::Tensor gradient, const torch::autograd::Node& node, const std::string& what,
                           const std::string& label) {
  if (!gradient.defined()) return node.input_metadata(0).zeros_like();
  if (at::GradMode::is_enabled() && gradient.requires_grad()) {
    Diagnostic d = MakeDiagnostic(Finding::kNotSupported, what + " cannot be differentiated twice");
    d.path = label;
    d.declared = "backward with create_graph";
    d.required = "first-order gradients";
    throw PlanError({std::move(d)});
  }
  return gradient;
}

}  // namespace moonshard
