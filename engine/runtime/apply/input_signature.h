// InputSignature: what must be equal on every rank about the inputs of a call, "Long [2, 8], Float [2, *, 64] with the
// integers 5f3a09c1d20b44e7".
// Computed at every outermost call of a model; where the sizes are those of the call before, no text is made.
//
// Integers on the CPU (token ids, positions, masks) are compared by their values too: ranks that read different batches
// compute nonsense without any other sign. Values of floating-point tensors and of tensors on a GPU are compared in
// every n-th call if the host wants it (ApplyOptions::check_inputs): reading them costs a copy to the host and a hash
// of all bytes. An input that may be a shard, by the module's rule or because the plan shards one of its dims at run
// time, has values of its own on each rank and is left out.
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
  // Sizes that may differ between ranks, because the dim may be sharded, are "*": of floating-point inputs the dims in
  // `sharded_dims` (CompiledPlan's), of any input the dim of its declared shard in `arriving` (ModuleSteps'). All
  // values are compared in every `check_values`-th call, beginning with the first; 0: never.
  InputSignature(std::set<int64_t> sharded_dims, std::vector<ArrivingInput> arriving, int64_t check_values = 0)
      : sharded_dims_(std::move(sharded_dims)), arriving_(std::move(arriving)), check_values_(check_values) {}

  // The label that ranks compare for a call with these arguments. The reference is valid until Of is called again.
  const CollectiveLabel& Of(std::span<const TensorSlot> arguments);

 private:
  bool IsLike(std::span<const TensorSlot> arguments) const;
  bool MayBeShard(const TensorSlot& slot, int64_t dim) const;
  // One hash of all full integers on the CPU, and with `all` of every other tensor that is full on every rank; nothing
  // where there are none.
  std::optional<uint64_t> ValuesOf(std::span<const TensorSlot> arguments, bool all) const;
  bool IsFull(const TensorSlot& slot) const;
  // Gives `visit` the numbers that describe the tensors, until it answers false.
  template <class Visit>
  bool VisitNumbers(std::span<const TensorSlot> arguments, Visit&& visit) const;

  std::set<int64_t> sharded_dims_;
  std::vector<ArrivingInput> arriving_;
  int64_t check_values_ = 0;
  int64_t calls_ = 0;
  std::vector<int64_t> last_;  // dtype, number of dims and sizes of each tensor
  std::string shapes_;         // last_ as text
  uint64_t values_ = 0;        // of all integers, or of all values
  bool all_values_ = false;    // which of the two
  CollectiveLabel label_{""};
};

}  // namespace moonshard
