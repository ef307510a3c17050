// GradientReduction: reduces the gradients of a unit's full parameters to gradients of the shards, and adds these to
// .grad. It runs one reduce-scatter per dtype, which may overlap with the rest of the backward.
// Stage before: unit.h, which collects the gradients. Stage after: .grad, or redistribute/gradient_sum.h for parameters
// whose gradients are summed over further axes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/fsdp/full_parameters.h"
#include "engine/runtime/fsdp/unit_stamp.h"
#include "engine/runtime/redistribute/gradient_sum.h"
#include "engine/runtime/redistribute/presence.h"

namespace moonshard {

class GradientReduction {
 public:
  // `reduced`: for each parameter, the dtype in which its gradients are summed. `scale`: factor by which the sums are
  // multiplied. `sum`: receives the gradients that are summed over further axes. `parameters` must outlive this.
  GradientReduction(const std::vector<UnitParameter>& parameters, std::vector<c10::ScalarType> reduced, double scale,
                    std::shared_ptr<AxisGroup> group, std::shared_ptr<GradientSum> sum, std::string label,
                    UnitStamp stamp);

  // Starts the reduce-scatter of `gradients`: for each parameter its full gradient, or an undefined tensor if it has no
  // gradient. Collective. No other reduction may be pending.
  void Start(std::vector<at::Tensor> gradients);
  // Waits for the reduce-scatter and adds its result to .grad of the shards. Does nothing if none was started. Throws
  // PlanError kCollectiveMismatch if a rank reduces another unit (unit_stamp.h); .grad is then unchanged, but for the
  // dtypes that were added before.
  void Finish();
  void Drop() { pending_.clear(); }
  bool started() const { return !pending_.empty(); }

  // Returns `gradient` in the dtype of the sum. The gradients of several uses and micro-batches are added in this
  // dtype.
  at::Tensor InSumDType(size_t i, const at::Tensor& gradient) const { return gradient.to(reduced_[i]); }

 private:
  at::TensorOptions SumOptions(const UnitFlat& flat) const;
  void AddToGrads(const UnitFlat& flat, at::Tensor block, const Presence& presence);

  const std::vector<UnitParameter>& parameters_;
  std::vector<c10::ScalarType> reduced_;
  double scale_;
  std::shared_ptr<AxisGroup> group_;
  std::shared_ptr<GradientSum> sum_;
  CollectiveLabel label_;
  std::vector<UnitFlat> flats_;
  UnitStamp stamp_;
  std::vector<at::Tensor> stamps_;  // per flat, in the dtype of its sum
  struct Pending {
    const UnitFlat* flat;
    PendingCollective collective;
    Presence presence;
  };
  std::vector<Pending> pending_;
};

}  // namespace moonshard
