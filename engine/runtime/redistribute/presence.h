// Presence: which of the gradients in one summed buffer exist on any rank. Every rank sends a flag for each gradient
// with the buffer: 1 if this rank has the gradient, 0 if it sends zeros in its place. After the sum a flag is positive
// if any rank has the gradient.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

namespace moonshard {

class Presence {
 public:
  // Adds a gradient. `trains`: whether any rank may have it; a parameter that is frozen is frozen on all ranks.
  void Add(bool present, bool trains = true);

  // Returns the flags to send, one per Add. If they are all equal, they are made on the device, because an upload makes
  // the host wait for the device.
  at::Tensor Flags(const at::TensorOptions& options) const;

  // Returns whether any rank has the gradient, for each Add. `sums`: the sums of the flags over all ranks. They are
  // read only if this rank lacks a gradient that another rank may have: a read makes the host wait for the device.
  std::vector<bool> Any(const at::Tensor& sums) const;

 private:
  std::vector<float> flags_;
  bool equal_ = true;  // all flags are equal
  bool known_ = true;  // the result of Any does not depend on other ranks
};

}  // namespace moonshard
