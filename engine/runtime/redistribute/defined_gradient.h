// DefinedGradient: the gradient with which the backward node of a collective works.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace moonshard {

// Returns `gradient`, of output 0 of the forward of `node`; zeros if it is undefined, since it may be defined on
// another rank and the collective needs every rank. `what` ("a redistribution") and `label` name the node in the error:
// throws PlanError kNotSupported in a backward that is itself differentiated (create_graph).
at::Tensor DefinedGradient(at::Tensor gradient, const torch::autograd::Node& node, const std::string& what,
                           const std::string& label);

}  // namespace moonshard
