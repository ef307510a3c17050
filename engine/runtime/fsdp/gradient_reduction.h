// GradientReduction: the gradients of a unit's whole parameters on their way to the shards' .grad: one reduce-scatter a
// dtype, which may run beside the rest of the backward.
// Stage before: unit.h, which collects the gradients. Stage after: .grad, or layout/gradient_sum.h for what is summed
// over further axes.
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
  // `scale`: of the summed gradients. `reduced`: by parameter, the dtype of the sum.
  GradientReduction(const std::vector<UnitParameter>& parameters, std::vector<c10::ScalarType> reduced, double scale,
                    std::shared_ptr<AxisGroup> group, std::shared_ptr<GradientSum> sum, std::string label);

  // Begins to sum `gradients`, by parameter, whole; an undefined one counts as none. Not while one is under way.
  void Start(std::vector<at::Tensor> gradients);
  // Adds what Start began to .grad; nothing where it did not.
  void Finish();
  void Drop() { pending_.clear(); }
  bool started() const { return !pending_.empty(); }

  // In the dtype of the sum, of which gradients of several uses and micro-batches are made up.
  at::Tensor InSumDType(size_t i, const at::Tensor& gradient) const { return gradient.to(reduced_[i]); }

 private:
  void Bring(const UnitFlat& flat, at::Tensor block);

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
