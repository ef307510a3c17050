// GradientReduction: brings the gradients of a unit's full parameters to the shards' .grad: one reduce-scatter per
// dtype, which may overlap the rest of the backward.
// Stage before: unit.h, which collects the gradients. Stage after: .grad, or redistribute/gradient_sum.h for parameters
// that are summed over further axes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/fsdp/full_parameters.h"
#include "engine/runtime/redistribute/gradient_sum.h"

namespace moonshard {

class GradientReduction {
 public:
  // `scale`: factor of the summed gradients. `reduced`: by parameter, the dtype of the sum. `parameters` must outlive
  // this.
  GradientReduction(const std::vector<UnitParameter>& parameters, std::vector<c10::ScalarType> reduced, double scale,
                    std::shared_ptr<AxisGroup> group, std::shared_ptr<GradientSum> sum, std::string label);

  // Starts the reduce-scatter of `gradients`, by parameter, each full or undefined (no gradient). One at a time.
  void Start(std::vector<at::Tensor> gradients);
  // Waits for it and adds the shards to .grad; nothing if none was started.
  void Finish();
  void Drop() { pending_.clear(); }
  bool started() const { return !pending_.empty(); }

  // In the dtype of the sum, in which gradients of several uses and micro-batches are added up.
  at::Tensor InSumDType(size_t i, const at::Tensor& gradient) const { return gradient.to(reduced_[i]); }

 private:
  void AddToGrads(const UnitFlat& flat, at::Tensor block);

  const std::vector<UnitParameter>& parameters_;
  std::vector<c10::ScalarType> reduced_;
  double scale_;
  std::shared_ptr<AxisGroup> group_;
  std::shared_ptr<GradientSum> sum_;
  CollectiveLabel label_;
  std::vector<UnitFlat> flats_;
  struct Pending {
    const UnitFlat* flat;
    PendingCollective collective;
  };
  std::vector<Pending> pending_;
};

}  // namespace moonshard
