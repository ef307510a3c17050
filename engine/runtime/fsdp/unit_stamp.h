// UnitStamp: marks the collectives of a unit with the unit's number, so that ranks that run one collective for
// different units fail instead of exchanging the values of different parameters. Ranks do so where only some of them
// call a unit, for example an expert that is skipped on a rank without tokens for it: the next collective of this rank
// is that of another unit, often of equal size, and the backend finds nothing wrong.
//
// The stamp is sent in the collective itself, as kElements elements at the end of each rank's block:
//
//   code  32 binary digits of the unit's code, each 0 or 1: exact in every dtype
//   not   the complement of each digit
//
// A gather delivers the stamp of every rank. A reduce-scatter delivers the sums of the stamps. A sum of zeros and ones
// is zero exactly if all terms are zero, also where its rounding makes it inexact (the sum of 300 ones in bfloat16). So
// the ranks agree on a digit exactly if one of the sums of the digit and of its complement is zero, and every rank that
// reads the sums finds a difference.
//
// On the CPU the stamps are compared on the host, and a difference throws PlanError kCollectiveMismatch, which names
// this rank's unit and the others', on every rank of the group. On a GPU they are compared by kernels, and a difference
// fails a device-side assertion (at::_assert_async), because reading the stamps would make the host wait for the
// device.
// Stage before: unit.h, which numbers the units. Stage after: full_parameters.h and gradient_reduction.h, which send
// and compare the stamps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "engine/runtime/collective/axis_group.h"

namespace moonshard {

class UnitStamp {
 public:
  static constexpr int64_t kElements = 64;

  // `labels`: of all units of the model, "unit 'layers.0' (line 7)"; the same on every rank. `unit`: index into them.
  UnitStamp(size_t unit, std::shared_ptr<const std::vector<std::string>> labels);

  // Returns the stamp [kElements]. Make it once for each dtype and device, because the values come from the host.
  at::Tensor Make(const at::TensorOptions& options) const;

  // Compares the stamps of all ranks [ranks, kElements], as a gather over `group` has delivered them, with `own`, the
  // result of Make.
  void CompareGathered(const at::Tensor& stamps, const at::Tensor& own, const AxisGroup& group) const;
  // Compares the stamps of all ranks by their sums [kElements], as a reduce-scatter over `group` has delivered them. On
  // the CPU the error names the other unit if the ranks mean two units; if they mean more, it only says so.
  void CompareSums(const at::Tensor& sums, const AxisGroup& group) const;

  // What is asserted on a GPU: whether the stamps of all ranks are `own`, or the sums are those of equal stamps. A
  // tensor of one bool on the device of the arguments.
  static at::Tensor GatheredAlike(const at::Tensor& stamps, const at::Tensor& own);
  static at::Tensor SummedAlike(const at::Tensor& sums);

 private:
  const std::string& label() const { return (*labels_)[unit_]; }
  // The label of the unit with this code; "" if there is none.
  std::string LabelOfCode(uint32_t code) const;
  [[noreturn]] void Refuse(const std::string& what, const std::string& declared) const;

  size_t unit_;
  std::shared_ptr<const std::vector<std::string>> labels_;
};

}  // namespace moonshard
