#include "engine/runtime/fsdp/gradient_reduction.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "engine/core/base/check.h"
#include "engine/runtime/intercept/region.h"

namespace moonshard {

GradientReduction::GradientReduction(const std::vector<UnitParameter>& parameters, std::vector<c10::ScalarType> reduced,
                                     double scale, std::shared_ptr<AxisGroup> group, std::shared_ptr<GradientSum> sum,
                                     std::string label, UnitStamp stamp)
    : parameters_(parameters),
      reduced_(std::move(reduced)),
      scale_(scale),
      group_(std::move(group)),
      sum_(std::move(sum)),
      label_(std::move(label)),
      flats_(FlatsOf(parameters, group_->sizes(), /*trained=*/true)),
      stamp_(std::move(stamp)) {
  for (const UnitFlat& flat : flats_) stamps_.push_back(stamp_.Make(SumOptions(flat)));
}

at::TensorOptions GradientReduction::SumOptions(const UnitFlat& flat) const {
  return at::TensorOptions().dtype(reduced_[flat.members.front()]).device(group_->device());
}

// Gradients are packed rank-major in the dtype of the sum: block r holds the rows that rank r owns of every parameter.
// A reduce-scatter sums and delivers them at once, where an all-reduce would send twice the bytes and leave every rank
// with gradients of rows it does not own.
void GradientReduction::Start(std::vector<at::Tensor> gradients) {
  Check(pending_.empty(), "a reduce-scatter of gradients while another is pending");
  const at::NoGradGuard no_grad;
  Region region("the sum of a unit's gradients", label_.text(), group_->axes());
  const int64_t n = group_->size();
  for (size_t f = 0; f < flats_.size(); ++f) {
    const UnitFlat& flat = flats_[f];
    std::vector<at::Tensor> full;
    Presence presence;
    bool trains = false;
    for (size_t i : flat.members) {
      trains |= parameters_[i].tensor.requires_grad();
      presence.Add(gradients[i].defined(), parameters_[i].tensor.requires_grad());
      region.DeclareGradientInput(parameters_[i].tensor, gradients[i]);
      full.push_back(std::move(gradients[i]));
    }
    if (!trains) continue;
    // Every block carries all flags and the stamp, so that after the reduce-scatter each rank has their sums: .grad of
    // a parameter that no rank used stays undefined, as it would without fsdp. A frozen dtype is skipped, on every rank
    // alike.
    at::Tensor all = at::zeros({n * flat.shards.block()}, SumOptions(flat));
    flat.shards.PackFull(full, all);
    full.clear();
    flat.FlagsOf(all).copy_(presence.Flags(all.options()));
    flat.StampsOf(all).copy_(stamps_[f]);
    const int64_t elements = flat.shards.elements();
    const CollectiveUse use = {Direction::kBackward, &label_, {&elements, 1}, elements * all.element_size(), -1};
    pending_.push_back({&flat, group_->StartReduceScatter(all, use), std::move(presence)});
  }
}

// The list is emptied before the waits: where a collective throws, the reduction holds nothing and the next backward
// can start one.
void GradientReduction::Finish() {
  const at::NoGradGuard no_grad;
  std::vector<Pending> pending = std::move(pending_);
  pending_.clear();
  for (Pending& one : pending) AddToGrads(*one.flat, group_->Finish(std::move(one.collective)), one.presence);
}

void GradientReduction::AddToGrads(const UnitFlat& flat, at::Tensor block, const Presence& presence) {
  std::vector<at::Tensor> shards(flat.members.size());
  {
    Region region("the sum of a unit's gradients", label_.text(), group_->axes());
    stamp_.CompareSums(flat.StampIn(block), *group_);
    const std::vector<bool> any = presence.Any(flat.FlagsIn(block));
    if (scale_ != 1) block.mul_(scale_);
    const at::Tensor& first = parameters_[flat.members.front()].tensor;
    // Scaled in the dtype of the sum, then converted to that of the shards and brought to their device (the host's
    // memory where they are offloaded).
    block = block.to(first.device(), first.scalar_type());
    for (size_t k = 0; k < flat.members.size(); ++k) {
      if (!any[k]) continue;
      // No view as autograd sees it: optimizers detach gradients in place.
      shards[k] = flat.shards.ShardIn(block, k, group_->rank()).variable_data();
      region.DeclareGradientOutput(parameters_[flat.members[k]].tensor, shards[k], Layout::Shard(0));
    }
  }
  // A shard that is summed over further axes too (a shared parameter under tp, hybrid sharding over dp_replicate) goes
  // to the flat sum of the backward's end; the others are final.
  for (size_t k = 0; k < flat.members.size(); ++k) {
    if (!shards[k].defined()) continue;
    const at::Tensor& parameter = parameters_[flat.members[k]].tensor;
    if (sum_->Sums(parameter)) {
      sum_->AccumulateGrad(parameter, shards[k]);
      continue;
    }
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined()) {
      gradient.add_(shards[k]);
    } else {
      gradient = std::move(shards[k]);
    }
  }
}

}  // namespace moonshard
