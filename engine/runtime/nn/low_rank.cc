#include "engine/runtime/nn/low_rank.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>

namespace moonshard::nn {

// A rank without elements of the factors computes as its owner does, with a term of zeros: it draws the same random
// numbers, and its factors have a gradient and a state of the optimizer.
at::Tensor AddLowRank(const at::Tensor& made, const at::Tensor& input, const LowRank& term, bool training) {
  const bool empty = term.a.numel() == 0 && term.b.numel() == 0;
  const at::Tensor a = empty ? term.a.reshape({0, input.size(-1)}) : term.a;
  const at::Tensor b = empty ? term.b.reshape({made.size(-1), 0}) : term.b;
  const at::Tensor dropped = term.dropout > 0 ? at::dropout(input, term.dropout, training) : input;
  const at::Tensor inner = at::linear(dropped.to(a.scalar_type()), a);
  return made.add(at::linear(inner, b).to(made.scalar_type()), term.scale);
}

}  // namespace moonshard::nn
