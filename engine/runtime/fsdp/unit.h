// Unit: parameters that lie in shards over an axis and are whole while a call of their module, or its backward, runs. One
// all-gather makes them whole, one reduce-scatter brings the sum of the ranks' gradients back to the shards.
//
// A parameter stays the same tensor throughout. Between calls it is a leaf that holds this rank's shard, as an optimizer
// wants it. While it is whole it is the output of a node of autograd's graph (unit_graph.h), so gradients of the whole
// never reach its .grad: the node collects them, and what ends in .grad is the shard's.
//
//   Enter      gather, unless an earlier unit has (unit_order.h); forward runs on the whole parameters
//   Leave      back to shards (unless the unit keeps what it gathered for the backward)
//   ~ backward through an output: gather again; gradients are collected
//   ~ the gradient of the inputs is there, or the backward ends: back to shards, a reduce-scatter begins; when the next
//     unit's begins, or the backward ends, .grad has it
//
// torch::autograd::grad cannot have the gradient of a sharded parameter: the shard's comes from a reduce-scatter at the end
// of the backward, when grad has returned, and what it would find is an undefined tensor. So the node has an edge to each
// shard's accumulator, along which nothing flows: autograd then runs the node for such a request, and it throws
// kUnshardedFunction. A parameter with a hook of the host's (register_hook on the leaf) gets no such
// edge, for the hook would be called with an undefined gradient.
//
// A module may be called several times before a backward, in the middle of another's backward (recomputation), under
// no_grad, and end with an exception. Whole parameters may have another dtype than the shards (precision). Gradients are those of the mean (or sum) over the axis, accumulated in .grad as
// autograd does; a parameter that no rank used gets none. Source of the technique: ZeRO stage 3 (Rajbhandari et al. 2020),
// PyTorch's fully_shard.
// Stage before: compile (ShardedUnit). Stage after: apply, which puts a UnitBoundary around the module's calls.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/fsdp/full_parameters.h"
#include "engine/runtime/fsdp/gradient_reduction.h"
#include "engine/runtime/fsdp/unit_order.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/redistribute/backward_end.h"
#include "engine/runtime/redistribute/gradient_sum.h"

namespace moonshard {

struct UnitOptions {
  std::string path;                      // of the module, for errors and labels
  std::string where;                     // " (line 12)" in the plan, or "": for labels
  bool reshard = true;                   // back to shards after a forward whose backward may follow
  bool keep_unsynced = false;            // stay whole after a backward without sync: the same values serve the next one
  bool accumulate_shards = false;        // gradients without sync are summed at once, and wait in shards
  double scale = 1;                      // of the summed gradients
  std::vector<c10::ScalarType> reduced;  // by parameter: the dtype in which its gradients are summed
};

// What the units of a model share.
struct UnitGroups {
  std::shared_ptr<AxisGroup> all;   // over which parameters lie in shards
  std::shared_ptr<AxisGroup> some;  // to which they go back after a forward; null: to all
  std::shared_ptr<UnitOrder> order;
  std::shared_ptr<BackwardEnd> end;
  std::shared_ptr<GradientSum> sum;
};

class Unit : public std::enable_shared_from_this<Unit> {
 public:
  // One call: from Enter to the end of its backward.
  struct Use;

  // `groups.sum` gets the shards' gradients of those parameters that it sums over further axes.
  Unit(std::vector<UnitParameter> parameters, UnitOptions options, UnitGroups groups);

  // Makes the parameters whole: collective unless they are. Replaces tensors that need a gradient by ones that tell when
  // it is there. Every Enter is followed by one Leave or Abandon.
  std::shared_ptr<Use> Enter(std::span<const TensorSlot> arguments);
  void Leave(const std::shared_ptr<Use>& use, std::span<const TensorSlot> results);
  // The call ended by an exception.
  void Abandon(const std::shared_ptr<Use>& use);

  // Whole outside of any call, until Close: for reading, or for writing what shards are then cut from. Collective.
  void Open();
  // `write_back`: this rank's rows of what is whole become its shard.
  void Close(bool write_back);

  // Ends the backwards that are open: back to shards, gradients to .grad. Collective.
  void EndBackward();
  // What EndBackward leaves under way.
  void FinishReduction() { reduction_.Finish(); }
  // Forgets calls and backwards that an exception ended, and what was gathered for them.
  void Reset();
  // Begins to gather before the next call or backward, unless one is under way. Collective.
  void GatherAhead(Direction direction);
  // Lets go of what was gathered ahead and not used.
  void DropAhead();
  // false: gradients wait for a backward under true, which brings all to .grad.
  void SetGradientSync(bool sync) { sync_ = sync; }

  const std::string& path() const { return options_.path; }
  // Bytes that gathered parameters take now.
  int64_t gathered_bytes() const { return gathered_.bytes(); }

 private:
  friend class UnitNode;
  friend class UnitInputNode;

  void MakeFull(Direction direction);
  void ArmShard(size_t i);
  // Throws kUnshardedFunction where a parameter holds another tensor than this rank's rows (torch::load, set_data).
  void CheckShards() const;
  enum class After : uint8_t { kFree, kKeepSome, kKeep };
  void Release(After after);
  void Attach(const std::shared_ptr<Use>& use);
  void OpenBackward(const std::shared_ptr<Use>& use);
  void Collect(Use& use, std::span<const at::Tensor> gradients);
  void CloseBackward(Use& use);

  std::vector<UnitParameter> parameters_;
  std::vector<at::Tensor> shards_;  // handles of the rows, while the parameters are whole
  std::vector<std::vector<int64_t>> shard_shapes_;
  // By parameter, ShardNodes of the leaves that hold the shards; null where it needs no gradient. Held, because autograd keeps it
  // weakly and a gather in another dtype makes it forget it.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  UnitOptions options_;
  UnitGroups groups_;
  FullParameters gathered_;
  GradientReduction reduction_;
  std::vector<std::shared_ptr<Use>> open_;  // whose backward runs
  std::vector<at::Tensor> waiting_;         // whole gradients of backwards without sync
  int users_ = 0;                           // calls and backwards that need the parameters whole now
  bool sync_ = true;
};

}  // namespace moonshard
