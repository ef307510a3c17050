#include "engine/runtime/nn/low_rank.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>

namespace moonshard::nn {

// The sums of factors without elements, which are zero, keep them in the graph, so that factors have a gradient and a
// state of the optimizer on every rank.
at::Tensor AddLowRank(const at::Tensor& made, const at::Tensor& input, const LowRank& term, bool training) {
  if (term.a.numel() == 0 && term.b.numel() == 0) return made.add(term.a.sum() + term.b.sum());
  const at::Tensor dropped = term.dropout > 0 ? at::dropout(input, term.dropout, training) : input;
  const at::Tensor inner = at::linear(dropped.to(term.a.scalar_type()), term.a);
  return made.add(at::linear(inner, term.b).to(made.scalar_type()), term.scale);
}

}  // namespace moonshard::nn
