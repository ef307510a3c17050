#include "engine/runtime/redistribute/local_experts.h"

#include <ATen/ATen.h>

#include "engine/core/base/result.h"
#include "engine/core/base/text.h"
#include "engine/runtime/intercept/region.h"

namespace moonshard {

void LocalExperts::Keep(at::Tensor& ids, at::Tensor& weights, const std::string& label) const {
  const bool integers = at::isIntegralType(ids.scalar_type(), false);
  if (!integers || ids.sizes() != weights.sizes()) {
    Diagnostic d = MakeDiagnostic(Finding::kBadInput,
                                  "the route of '" + label + "' does not consist of expert ids and their weights");
    d.path = label;
    d.declared = std::string(integers ? "ids" : "non-integer ids") + " of shape " + ShapeToString(ids.sizes()) +
                 ", weights of shape " + ShapeToString(weights.sizes());
    d.required = "integer ids and weights of the same shape, such as [tokens, experts per token]";
    throw PlanError({std::move(d)});
  }
  // masked_fill and not indexing: shapes stay those of the full route on every rank, so nothing downstream depends on
  // how many tokens this rank's experts got, and the gradient of a masked weight is zero here. The router's gradient is
  // then the sum over the ranks, which the layout of the route declares.
  const at::Tensor other = at::logical_or(ids < first, ids >= first + count);
  NoteOwnRows(other, MeshAxis::kTp);
  ids = (ids - first).masked_fill(other, count);
  weights = weights.masked_fill(other, 0);
}

}  // namespace moonshard
