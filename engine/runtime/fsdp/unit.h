// Unit: the parameters of a module that are sharded over an axis, and full only while a call of the module or its
// backward runs. One all-gather makes them full, one reduce-scatter brings the sum of the ranks' gradients back to the
// shards. Source of the technique: ZeRO stage 3 (Rajbhandari et al. 2020), PyTorch's fully_shard.
//
// A parameter stays the same tensor throughout. Between calls it is a leaf that holds this rank's shard, as an
// optimizer needs it. While it is full it is the output of a node of autograd's graph (unit_graph.h), so gradients of
// the full parameter never reach its .grad: the node collects them, and .grad receives the shard's.
//
//   Enter      gather, unless gathered ahead (unit_order.h); the forward runs on full parameters
//   Leave      reshard, unless the unit keeps its parameters full for the backward
//   ~ backward reaches an output: gather again; gradients are collected
//   ~ the gradients of the inputs are complete, or the backward ends: reshard, start a reduce-scatter; .grad has it
//     when the next unit starts its own, or the backward ends
//
// torch::autograd::grad cannot return the gradient of a sharded parameter: the gradient of the shard comes from a
// reduce-scatter at the end of the backward, after grad has returned, so grad would return an undefined tensor.
// Therefore the node has an edge to each shard's accumulator, without a gradient: autograd then runs the node for such
// a request, and the node throws kUnshardedFunction. A parameter with a hook of the host (register_hook on the leaf)
// has no such edge, because the hook would be called with an undefined gradient.
//
// A module may be called several times before a backward, within another call's backward (recomputation), under
// no_grad, and end with an exception. Full parameters may have another dtype than the shards (precision). Gradients are
// the mean (or sum) over the axis, accumulated in .grad as autograd does; a parameter that no rank used gets none.
// Stage before: compile (ShardedUnit). Stage after: unit_step.h, which apply puts first around the calls of the module.
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
  bool reshard = true;                   // reshard after a forward whose backward may follow
  bool keep_unsynced = false;            // stay full after a backward without sync: the next one needs the same values
  bool accumulate_shards = false;        // reduce-scatter gradients without sync too, and accumulate shards
  double scale = 1;                      // factor of the summed gradients
  std::vector<c10::ScalarType> reduced;  // by parameter: the dtype in which its gradients are summed
};

// State that the units of a model share.
struct UnitGroups {
  std::shared_ptr<AxisGroup> all;   // over which parameters are sharded
  std::shared_ptr<AxisGroup> some;  // over which they are sharded between forward and backward; null: over all
  std::shared_ptr<UnitOrder> order;
  std::shared_ptr<BackwardEnd> end;
  std::shared_ptr<GradientSum> sum;
};

class Unit : public std::enable_shared_from_this<Unit> {
 public:
  // One call: from Enter to the end of its backward.
  struct Use;

  // Owns the full tensors; the parameters themselves belong to the model. `groups.sum` receives the shards' gradients
  // of parameters that it sums over further axes.
  Unit(std::vector<UnitParameter> parameters, UnitOptions options, UnitGroups groups);

  // Makes the parameters full; collective unless they are. Replaces arguments that need a gradient by views whose
  // backward ends this call's. Every Enter is followed by one Leave or Abandon.
  std::shared_ptr<Use> Enter(std::span<const TensorSlot> arguments);
  void Leave(const std::shared_ptr<Use>& use, std::span<const TensorSlot> results);
  // The call ended by an exception.
  void Abandon(const std::shared_ptr<Use>& use);

  // Makes the parameters full outside of any call, until Close: to read them, or to write them. Collective.
  void Open();
  // `write_back`: copies this rank's rows of the full parameters to its shards.
  void Close(bool write_back);

  // Ends all open backwards: reshards and starts the reduce-scatter of their gradients. Collective.
  void EndBackward();
  // Waits for that reduce-scatter and adds the gradients to .grad.
  void FinishReduction() { reduction_.Finish(); }
  // Drops calls and backwards that an exception ended, and the parameters that were gathered for them.
  void Reset();
  // Starts the all-gather for the next call or backward, unless the parameters are full. Collective.
  void GatherAhead(Direction direction);
  // Drops parameters that were prefetched and not used.
  void DropAhead();
  // false (micro-batches before the last): gradients accumulate in the unit; the next backward with true reduces them.
  void SetGradientSync(bool sync) { sync_ = sync; }
  // Drops the gradients that accumulated so.
  void DropUnsynced() { unsynced_.clear(); }

  const std::string& path() const { return options_.path; }
  // Bytes that gathered parameters take now.
  int64_t gathered_bytes() const { return gathered_.bytes(); }

 private:
  friend class UnitNode;
  friend class UnitInputNode;

  // Each MakeFull is paired with a Release; the last Release reshards.
  void MakeFull(Direction direction);
  // Makes the accumulator of shard `i` one that the node may have an edge to.
  void ArmShard(size_t i);
  // Throws kUnshardedFunction where a parameter holds another tensor than this rank's rows (torch::load, set_data).
  void CheckShards() const;
  enum class After : uint8_t { kFree, kKeepSome, kKeep };  // what happens to the full tensors then
  void Release(After after);
  void Attach(const std::shared_ptr<Use>& use);
  void OpenBackward(const std::shared_ptr<Use>& use);
  void Collect(Use& use, std::span<const at::Tensor> gradients);
  void CloseBackward(Use& use);

  std::vector<UnitParameter> parameters_;
  std::vector<at::Tensor> shards_;  // handles of this rank's rows, while the parameters are full
  std::vector<std::vector<int64_t>> shard_shapes_;
  // By parameter, ShardNodes of the leaves that hold the shards; null where it needs no gradient. Held, because
  // autograd keeps its accumulator weakly and drops it when a gather changes the dtype.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  UnitOptions options_;
  UnitGroups groups_;
  FullParameters gathered_;
  GradientReduction reduction_;
  std::vector<std::shared_ptr<Use>> open_;  // whose backward runs
  std::vector<at::Tensor> unsynced_;        // full gradients of backwards without sync
  int users_ = 0;                           // calls and backwards that need the parameters full now
  bool sync_ = true;
};

}  // namespace moonshard
