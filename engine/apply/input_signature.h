// InputSignature: what must be equal on every rank about the inputs of a call, "Long [2, 8], Float [2, *, 64]". Made at every
// outermost call of a model, so a call like the last one costs no more than looking at its sizes.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "engine/collective/label.h"
#include "engine/nn/boundary.h"

namespace moonshard {

class InputSignature {
 public:
  // In the dims that a plan cuts at run time (the sequence) a floating-point input may be a piece, and pieces need not be
  // equally long: there every size is "*".
  explicit InputSignature(std::set<int64_t> cut_dims) : cut_dims_(std::move(cut_dims)) {}

  // Valid until the next call.
  const CollectiveLabel& Of(std::span<const TensorSlot> arguments);

 private:
  bool IsLike(std::span<const TensorSlot> arguments) const;

  std::set<int64_t> cut_dims_;
  std::vector<int64_t> last_;  // dtype, number of dims and sizes of each tensor
  CollectiveLabel label_{""};
};

}  // namespace moonshard
