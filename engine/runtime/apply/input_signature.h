// InputSignature: a text of those properties of a call's inputs that must be equal on every rank of tp: "Long [2, 8],
// Float [2, *, 64], hash of the integers 5f3a09c1d20b44e7". It is computed at every outermost call of a model. If
// dtypes and sizes are those of the previous call, their text is reused.
//
// Values of integer inputs on the CPU (token ids, positions, masks) are part of the signature, as a hash: ranks that
// read different batches compute wrong results without any other sign. Values of floating-point inputs and of inputs on
// a GPU are part of it in every n-th call if the host requests it (ApplyOptions::check_inputs), because reading them
// costs a copy to the host and a hash of all bytes. The values of an input that may be a shard are left out: the
// module's rule declares a shard, or the plan shards one of the input's dims at run time.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/compile/compiled_plan.h"
#include "engine/runtime/collective/label.h"
#include "engine/runtime/nn/boundary.h"

namespace moonshard {

class InputSignature {
 public:
  // A size is "*" if it may differ between ranks because its dim may be sharded: in a floating-point input the dims of
  // `sharded_dims` (CompiledPlan::sharded_dims), in any input the dim of the shard that `arriving` declares
  // (ModuleSteps::arriving). `check_values` n > 0: the first call and every n-th after it include the values of all
  // full inputs; 0: no call does.
  InputSignature(std::set<int64_t> sharded_dims, std::vector<ArrivingInput> arriving, int64_t check_values = 0)
      : sharded_dims_(std::move(sharded_dims)), arriving_(std::move(arriving)), check_values_(check_values) {}

  // Returns the label that the ranks compare for a call with these arguments. The reference is valid until the next Of.
  const CollectiveLabel& Of(std::span<const TensorSlot> arguments);

 private:
  bool IsLike(std::span<const TensorSlot> arguments) const;
  bool MayBeShard(const TensorSlot& slot, int64_t dim) const;
  // One hash of the values of all full integer tensors on the CPU; with `all`, of every full tensor. Nothing if there
  // is no such tensor.
  std::optional<uint64_t> ValuesOf(std::span<const TensorSlot> arguments, bool all) const;
  bool IsFull(const TensorSlot& slot) const;
  // Passes the numbers that describe the tensors to `visit`, one by one, until `visit` returns false.
  template <class Visit>
  bool VisitNumbers(std::span<const TensorSlot> arguments, Visit&& visit) const;

  std::set<int64_t> sharded_dims_;
  std::vector<ArrivingInput> arriving_;
  int64_t check_values_ = 0;
  int64_t calls_ = 0;
  std::vector<int64_t> last_;  // of the last call: dtype, number of dims and sizes of each tensor
  std::string shapes_;         // last_ as text
  uint64_t values_ = 0;        // hash of the last call's values
  bool all_values_ = false;    // whether values_ covers all full tensors, or only integers on the CPU
  CollectiveLabel label_{""};
};

}  // namespace moonshard
