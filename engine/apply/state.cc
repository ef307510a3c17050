#include "engine/apply/state.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "engine/apply/pieces_of_tensor.h"
#include "engine/compile/local_shape.h"

namespace moonshard {
namespace {

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

}  // namespace

std::map<std::string, at::Tensor> LocalState(const AppliedPlan& model) {
  std::map<std::string, at::Tensor> out;
  for (const LiveParameter& parameter : model.parameters()) out[parameter.path] = parameter.tensor.detach();
  return out;
}

at::Tensor GatherWhole(const AppliedPlan& model, const LiveParameter& parameter, const at::Tensor& piece) {
  const c10::NoGradGuard no_grad;
  const MeshShape& shape = model.plan().mesh;
  const int64_t ranks = shape.size(MeshAxis::kTp);
  const bool sharded = parameter.placement[MeshAxis::kTp].is_shard() && ranks > 1;
  AxisGroup& group = model.group(MeshAxis::kTp);
  const CollectiveLabel label("gathering " + parameter.path);
  // Whether there is anything to gather is for all ranks together to say.
  if (ranks > 1) {
    const std::vector<int64_t> defined = group.ExchangeNumbers(piece.defined() ? 1 : 0, label);
    if (std::ranges::count(defined, 1) == 0) return {};
  } else if (!piece.defined()) {
    return {};
  }
  if (!sharded) return piece.defined() ? piece.detach().cpu().clone() : at::zeros(parameter.shape);

  const int64_t first = model.mesh().rank() - model.mesh().coordinate(MeshAxis::kTp);
  int64_t most = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    most = std::max(most, Elements(LocalShape(parameter.shape, parameter.placement, shape, first + r)));
  }
  const at::TensorOptions options = parameter.tensor.options().requires_grad(false);
  at::Tensor padded = at::zeros({most}, options);
  if (piece.defined()) padded.narrow(0, 0, piece.numel()).copy_(piece.detach().reshape({-1}));
  CollectiveUse use;
  use.label = &label;
  use.shape = parameter.shape;
  const at::Tensor gathered = group.AllGather(padded, use).cpu();
  at::Tensor whole = at::empty(parameter.shape, options.device(c10::kCPU));
  for (int64_t r = 0; r < ranks; ++r) {
    const std::vector<std::vector<Interval>> dims =
        LocalIntervals(parameter.shape, parameter.placement, shape, first + r);
    const std::vector<int64_t> local = LocalShape(parameter.shape, parameter.placement, shape, first + r);
    PutPiece(whole, gathered.narrow(0, r * most, Elements(local)).view(local), dims);
  }
  return whole;
}

std::map<std::string, at::Tensor> FullState(const AppliedPlan& model) {
  std::map<std::string, at::Tensor> out;
  for (const LiveParameter& parameter : model.parameters()) {
    out[parameter.path] = GatherWhole(model, parameter, parameter.tensor);
  }
  return out;
}

}  // namespace moonshard
