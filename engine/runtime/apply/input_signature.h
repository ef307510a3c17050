// InputSignature: a text with the properties of a call's inputs that must be equal on every rank of tp. An example:
// "Long [2, 8], Float [2, *, 64], hash of the integers 5f3a09c1d20b44e7". The signature is computed at every outermost
// call of a model. The text of dtypes and sizes is reused if they are the same as in the previous call.
//
// Values of integer inputs on the CPU (token ids, positions, masks) are part of the signature, as a hash: ranks that
// read different batches would compute wrong results without an error. Values of floating-point inputs and of inputs on
// a GPU are part of the signature only in every n-th call, and only if the caller sets ApplyOptions::check_inputs,
// because reading these values costs a copy to the CPU and a hash of all bytes. The values of an input are left out if
// the input may be a shard, because the module's rule declares it as a shard or the plan shards one of its dims at run
// time.
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
  // The size of a dim that may be sharded is "*" in the text, because it may differ between ranks. These dims are the
  // dim that `arriving` declares as sharded (ModuleSteps::arriving), and, in floating-point inputs, the dims in
  // `sharded_dims` (CompiledPlan::sharded_dims). `check_values` n > 0: the first call and every n-th after it include
  // the values of all full inputs; 0: no call does. `own_tokens`: dim 1 of every input may be sharded too: the ranks
  // call the model with their own tokens.
  InputSignature(std::set<int64_t> sharded_dims, std::vector<ArrivingInput> arriving, int64_t check_values = 0,
                 bool own_tokens = false)
      : sharded_dims_(std::move(sharded_dims)),
        arriving_(std::move(arriving)),
        check_values_(check_values),
        own_tokens_(own_tokens) {}

  // Returns the label that the ranks compare for a call with these arguments. The reference is valid until the next Of.
  const CollectiveLabel& Of(std::span<const TensorSlot> arguments);

 private:
  bool IsLike(std::span<const TensorSlot> arguments) const;
  bool MayBeShard(const TensorSlot& slot, int64_t dim) const;
  // Returns one hash of the values of all full integer tensors on the CPU, or with `all` of every full tensor. Returns
  // nothing if there is no such tensor.
  std::optional<uint64_t> ValuesOf(std::span<const TensorSlot> arguments, bool all) const;
  bool IsFull(const TensorSlot& slot) const;
  // Passes the numbers that describe the tensors to `visit`, one by one, until `visit` returns false.
  template <class Visit>
  bool VisitNumbers(std::span<const TensorSlot> arguments, Visit&& visit) const;

  std::set<int64_t> sharded_dims_;
  std::vector<ArrivingInput> arriving_;
  int64_t check_values_ = 0;
  bool own_tokens_ = false;
  int64_t calls_ = 0;
  std::vector<int64_t> last_;  // of the last call: dtype, number of dims and sizes of each tensor
  std::string shapes_;         // last_ as text
  uint64_t values_ = 0;        // hash of the last call's values
  bool all_values_ = false;    // whether values_ covers all full tensors, or only integers on the CPU
  CollectiveLabel label_{""};
};

}  // namespace moonshard
