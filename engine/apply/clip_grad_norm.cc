#include "engine/apply/clip_grad_norm.h"

#include <cmath>

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include "engine/compile/gradient_terms.h"

namespace moonshard {
namespace {

// What this rank counts of its gradient: of ranks that hold the same piece, the first speaks for it. Undefined: nothing.
at::Tensor Counted(const LiveParameter& parameter, const AppliedPlan& model) {
  at::Tensor grad = parameter.tensor.grad();
  if (parameter.is_buffer || !grad.defined()) return {};
  const int64_t coordinate = model.mesh().coordinate(MeshAxis::kTp);
  if (!parameter.placement[MeshAxis::kTp].is_shard()) return coordinate == 0 ? grad : at::Tensor();
  bool own = false;
  for (const GradientTerm& term :
       GradientTermsOf(parameter.shape, parameter.placement, model.plan().mesh, model.mesh().rank())) {
    if (coordinate % term.group.ranks == 0) continue;
    if (term.dim < 0) return {};
    if (!own) grad = grad.clone();
    own = true;
    grad.narrow(term.dim, term.begin, term.length).zero_();
  }
  return grad;
}

}  // namespace

double GradNorm(const AppliedPlan& model) {
  const c10::NoGradGuard no_grad;
  double sum = 0;
  for (const LiveParameter& parameter : model.parameters()) {
    const at::Tensor grad = Counted(parameter, model);
    if (!grad.defined()) continue;
    const double norm = grad.norm(2, c10::kDouble).item<double>();
    sum += norm * norm;
  }
  if (model.plan().mesh.size(MeshAxis::kTp) > 1) {
    static const CollectiveLabel label("gradient norm");
    CollectiveUse use;
    use.direction = Direction::kBackward;
    use.label = &label;
    const at::Tensor local =
        at::scalar_tensor(sum, at::TensorOptions().dtype(c10::kDouble).device(model.mesh().device()));
    sum = model.group(MeshAxis::kTp).AllReduce(local, use).item<double>();
  }
  return std::sqrt(sum);
}

double ClipGradNorm(AppliedPlan& model, double max_norm) {
  const c10::NoGradGuard no_grad;
  const double norm = GradNorm(model);
  const double scale = max_norm / (norm + 1e-6);
  if (scale < 1 || !std::isfinite(norm)) {
    for (const LiveParameter& parameter : model.parameters()) {
      at::Tensor grad = parameter.tensor.grad();
      if (!parameter.is_buffer && grad.defined()) grad.mul_(scale);
    }
  }
  return norm;
}

}  // namespace moonshard
