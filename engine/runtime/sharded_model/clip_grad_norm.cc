// The norm of a sharded model is the norm of the full one, so every element of a full gradient is to be counted once,
// although ranks hold shards, full copies, and shards with replicas. Each rank adds up the p-th powers of what it
// counts (Counted), the ranks' sums are added up axis by axis (Combine), and the root comes last:
//
//   tp=2, p=2      rank 0                          rank 1
//   q_proj shard   |g0|^2                          |g1|^2                            two halves of one gradient
//   norm shared    |g|^2                           0: rank 0 counts it               equal after the gradient sum
//
// It runs after the backward, when every .grad is final; before the sums it would be the norm of terms.
#include "engine/runtime/sharded_model/clip_grad_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "engine/plan/compile/gradient_sums.h"
#include "engine/runtime/intercept/region.h"

namespace moonshard {
namespace {

// The axes over whose ranks norms are combined: those that shard something. Along any other axis all ranks hold the
// same gradients, and each rank computes the same sum by itself.
std::vector<MeshAxis> CombinedAxes(const AppliedPlan& model) {
  std::vector<MeshAxis> axes;
  for (MeshAxis axis : kMeshAxes) {
    if (model.plan().mesh.size(axis) == 1 || !model.has_group(axis)) continue;
    const auto cut = [axis](const LiveParameter& parameter) { return parameter.placement[axis].is_shard(); };
    if (std::ranges::any_of(model.parameters(), cut)) axes.push_back(axis);
  }
  return axes;
}

// What this rank counts of a gradient, so that every element of the full gradient is counted by one rank. Along a
// combined axis that does not shard this parameter, all ranks hold the same gradient and coordinate 0 counts it. Where
// a group of ranks holds the same shard (key and value heads), the first of the group counts it; if only a part of the
// shard is held by several ranks, the others set that part to zero in a copy. Undefined: nothing.
at::Tensor Counted(const LiveParameter& parameter, const AppliedPlan& model, const std::vector<MeshAxis>& combined) {
  at::Tensor grad = parameter.tensor.grad();
  if (parameter.is_buffer || !grad.defined()) return {};
  for (MeshAxis axis : combined) {
    if (!parameter.placement[axis].is_shard() && model.mesh().coordinate(axis) != 0) return {};
  }
  bool own = false;
  for (const GradientTerm& term :
       GradientTermsOf(parameter.shape, parameter.placement, model.plan().mesh, model.mesh().rank())) {
    const MeshAxis axis = term.group.axes.axes().front();  // the one axis of a shard that several ranks hold
    if (!parameter.placement[axis].is_shard() || model.mesh().coordinate(axis) % term.group.ranks == 0) continue;
    if (term.dim < 0) return {};
    if (!own) grad = grad.clone();
    own = true;
    grad.narrow(term.dim, term.begin, term.length).zero_();
  }
  return grad;
}

// Adds up p-th powers axis by axis; `local` is a float64 tensor of one element on the mesh's device. An all-gather and
// a local sum, not an all-reduce: every rank adds the same numbers in the same order, so the result, and with it the
// scale, is the same to the bit on every rank. Ranks that scaled by different last bits would let replicated parameters
// drift apart.
at::Tensor Combine(const AppliedPlan& model, const std::vector<MeshAxis>& combined, at::Tensor local, bool largest) {
  static const CollectiveLabel label("gradient norm");
  for (MeshAxis axis : combined) {
    CollectiveUse use;
    use.direction = Direction::kBackward;
    use.label = &label;
    const at::Tensor all = model.group(axis).AllGather(local, use);
    local = (largest ? all.max() : all.sum()).view({1});
  }
  return local;
}

// The values of scalars, which may be on several devices (offloaded shards are in host memory).
std::vector<double> Download(const std::vector<at::Tensor>& scalars) {
  std::vector<double> values(scalars.size());
  std::vector<at::Tensor> on_device;
  std::vector<size_t> places;
  for (size_t i = 0; i < scalars.size(); ++i) {
    if (scalars[i].is_cpu()) {
      values[i] = scalars[i].item<double>();
    } else {
      on_device.push_back(scalars[i]);
      places.push_back(i);
    }
  }
  if (on_device.empty()) return values;
  const at::Tensor read = at::stack(on_device).to(at::kCPU);
  for (size_t i = 0; i < places.size(); ++i) values[places[i]] = read.const_data_ptr<double>()[i];
  return values;
}

}  // namespace

double GradNorm(const AppliedPlan& model, double p) {
  const at::NoGradGuard no_grad;
  const bool largest = std::isinf(p);
  const std::vector<MeshAxis> combined = CombinedAxes(model);
  std::vector<at::Tensor> norms;
  Region region("the gradient norm", "", MeshAxis::kTp);
  for (const LiveParameter& parameter : model.parameters()) {
    const Layout& layout = parameter.placement[MeshAxis::kTp];
    region.DeclareInput(parameter.tensor.grad(), layout.kind == LayoutKind::kShared ? Layout::Replicate() : layout);
    const at::Tensor grad = Counted(parameter, model, combined);
    if (!grad.defined() || grad.numel() == 0) continue;
    norms.push_back(grad.norm(p, at::kDouble));
  }
  // One copy to the host, since each makes the host wait for the device.
  double local = 0;
  for (const double norm : Download(norms)) {
    // A NaN stays one: std::max would drop it.
    local = largest ? (std::isnan(norm) || norm > local ? norm : local) : local + std::pow(norm, p);
  }
  const auto on_device = at::TensorOptions().dtype(at::kDouble).device(model.mesh().device());
  if (!combined.empty()) local = Combine(model, combined, at::full({1}, local, on_device), largest).item<double>();
  return largest ? local : std::pow(local, 1 / p);
}

double ClipGradNorm(AppliedPlan& model, double max_norm, double p) {
  const at::NoGradGuard no_grad;
  const double norm = GradNorm(model, p);
  const double scale = max_norm / (norm + 1e-6);
  if (scale < 1 || !std::isfinite(norm)) {
    for (const LiveParameter& parameter : model.parameters()) {
      at::Tensor grad = parameter.tensor.grad();
      if (!parameter.is_buffer && grad.defined()) grad.mul_(scale);
    }
  }
  return norm;
}

bool GradientsOnDevice(const AppliedPlan& model) {
  return std::ranges::all_of(model.parameters(), [&](const LiveParameter& parameter) {
    const at::Tensor grad = parameter.tensor.grad();
    return parameter.is_buffer || !grad.defined() || grad.device().type() == model.mesh().device().type();
  });
}

DeviceNorm GradNormOnDevice(const AppliedPlan& model, double p) {
  const at::NoGradGuard no_grad;
  const bool largest = std::isinf(p);
  const std::vector<MeshAxis> combined = CombinedAxes(model);
  std::vector<at::Tensor> counted;
  std::vector<int64_t> places;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const at::Tensor grad = Counted(model.parameters()[i], model, combined);
    if (!grad.defined() || grad.numel() == 0) continue;
    counted.push_back(grad);
    places.push_back(static_cast<int64_t>(i));
  }
  const auto on_device = at::TensorOptions().dtype(at::kDouble).device(model.mesh().device());
  DeviceNorm out;
  out.of_parameters = at::zeros({static_cast<int64_t>(model.parameters().size())}, on_device);
  // The places are known on the host: each is a view that is written, so no index is copied to the device.
  std::vector<at::Tensor> slots;
  slots.reserve(places.size());
  for (const int64_t place : places) slots.push_back(out.of_parameters.select(0, place));
  if (!counted.empty()) at::_foreach_copy_(slots, at::_foreach_norm(counted, p, at::kDouble));
  at::Tensor all = largest ? out.of_parameters.max() : out.of_parameters.pow(p).sum();
  all = Combine(model, combined, all.view({1}), largest);
  out.norm = (largest ? all : all.pow(1 / p)).select(0, 0);
  return out;
}

DeviceNorm ClipGradNormOnDevice(AppliedPlan& model, double max_norm, double p) {
  const at::NoGradGuard no_grad;
  DeviceNorm norm = GradNormOnDevice(model, p);
  // A NaN stays one: clamp keeps it.
  const at::Tensor scale = (max_norm / (norm.norm + 1e-6)).clamp_max(1);
  for (const LiveParameter& parameter : model.parameters()) {
    at::Tensor grad = parameter.tensor.grad();
    if (!parameter.is_buffer && grad.defined()) grad.mul_(scale);
  }
  return norm;
}

}  // namespace moonshard
