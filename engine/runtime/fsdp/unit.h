// Unit: the parameters of a module that are sharded over a mesh axis. They are full only while a call of the module or
// the backward of the call runs. One all-gather makes them full. One reduce-scatter sums the gradients of the ranks and
// returns the shards of the sum. Source of the technique: ZeRO stage 3 (Rajbhandari et al. 2020), PyTorch's
// fully_shard.
//
// A parameter stays the same tensor throughout. Between calls it is a leaf that holds this rank's shard, as an
// optimizer requires. While the parameter is full, it is an output of a node of autograd's graph (unit_graph.h), so
// gradients of the full parameter never reach its .grad: the node collects them, and .grad receives the gradient of the
// shard.
//
//   Enter      gather, unless prefetched (unit_order.h); the forward runs on full parameters
//   Leave      reshard, unless the unit keeps its parameters full for the backward
//   ~ the backward reaches an output: gather again; the node collects gradients
//   ~ the gradients of the inputs are complete, or the backward ends: reshard, start a reduce-scatter; .grad has its
//     result when the next unit starts its own reduce-scatter, or when the backward ends
//
// torch::autograd::grad cannot return the gradient of a sharded parameter: the gradient of the shard comes from a
// reduce-scatter at the end of the backward, after grad has returned, so grad would return an undefined tensor.
// Therefore the node has an edge to the accumulator of each shard, although no gradient passes along it: autograd then
// runs the node if grad requests this shard, and the node throws kUnshardedFunction. A parameter on which the user has
// registered a hook (register_hook on the leaf) has no such edge, because autograd would call the hook with an
// undefined gradient.
//
// Not supported, with an error: a backward with create_graph, since the reduction is no part of autograd's graph;
// sparse gradients; a parameter that got another dtype or device after Parallelize.
//
// These cases are supported: several calls of a module before a backward, a call during the backward of another call
// (recomputation), a call under no_grad, and a call that ends with an exception. Full parameters may have another dtype
// than the shards (precision). Gradients are the mean (or sum) over the axis, accumulated in .grad as autograd does.
// The .grad of a parameter that no rank used stays undefined.
//
// Stage before: compile (ShardedUnit). Stage after: unit_step.h, which apply places first around the calls of the
// module.
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
  std::string label;                     // of the unit, for errors: the stamp's (UnitStamp)
  bool reshard = true;                   // reshard after a forward whose backward may follow
  bool keep_unsynced = false;            // stay full after a backward without gradient sync, for the next call
  bool accumulate_shards = false;        // reduce-scatter gradients also in backwards without gradient sync
  double scale = 1;                      // factor of the summed gradients
  std::vector<c10::ScalarType> reduced;  // for each parameter, the dtype in which its gradients are summed
};

// Objects that the units of a model share.
struct UnitGroups {
  std::shared_ptr<AxisGroup> all;   // the ranks that shard the parameters
  std::shared_ptr<AxisGroup> some;  // the ranks that shard them between forward and backward; null: `all`
  std::shared_ptr<UnitOrder> order;
  std::shared_ptr<BackwardEnd> end;
  std::shared_ptr<GradientSum> sum;
};

class Unit : public std::enable_shared_from_this<Unit> {
 public:
  // The state of one call, from Enter to the end of the backward of the call.
  struct Use;

  // Owns the full tensors; the parameters belong to the model. `groups.sum` receives the shard gradients of parameters
  // whose gradients it sums over further axes. `stamp`: marks the unit's collectives.
  Unit(std::vector<UnitParameter> parameters, UnitOptions options, UnitGroups groups, const UnitStamp& stamp);

  // Makes the parameters full. Collective unless they are full already. Replaces arguments that need a gradient by
  // views. When the gradients of all these views are complete, the backward of this call is over. Every Enter must be
  // followed by one Leave or one Abandon.
  std::shared_ptr<Use> Enter(std::span<const TensorSlot> arguments);
  void Leave(const std::shared_ptr<Use>& use, std::span<const TensorSlot> results);
  // Releases the parameters after an exception has ended the call.
  void Abandon(const std::shared_ptr<Use>& use);

  // Makes the parameters full until Close, so that code outside of calls can read or write them. Collective.
  void Open();
  // `write_back`: copies this rank's rows of the full parameters into its shards. Not collective.
  void Close(bool write_back);

  // Ends all open backwards: reshards the parameters and starts the reduce-scatter of their gradients. Collective.
  void EndBackward();
  // Waits for the pending reduce-scatter, and adds its result to .grad. The end of the backward of a call starts it.
  void FinishReduction() { reduction_.Finish(); }
  // Whether a call or a backward has the parameters full now. Between steps: one that an exception has ended.
  bool in_use() const { return users_ > 0 || !open_.empty(); }
  // Drops the state of calls and backwards that an exception has ended, and frees the full parameters, also those that
  // the unit keeps for the next call or backward.
  void Reset();
  // Starts the all-gather for the next call or backward, unless the parameters are full. Collective.
  void GatherAhead(Direction direction);
  // Drops parameters that were prefetched and not used.
  void DropAhead();
  // After SetGradientSync(false) (micro-batches before the last), the gradients accumulate in the unit. The next
  // backward after SetGradientSync(true) reduces them.
  void SetGradientSync(bool sync) { sync_ = sync; }
  // Drops the gradients that accumulated in the unit.
  void DropUnsynced() { unsynced_.clear(); }

  const std::string& path() const { return options_.path; }
  // Bytes of memory that the full parameters use now.
  int64_t gathered_bytes() const { return gathered_.bytes(); }

 private:
  friend class UnitNode;
  friend class UnitInputNode;

  // Each MakeFull must be paired with one Release. The last Release reshards the parameters.
  void MakeFull(Direction direction);
  // Makes the accumulator of shard `i` a ShardNode, to which the unit's node may have an edge.
  void ArmShard(size_t i);
  // Throws kUnshardedFunction if a parameter holds another tensor than this rank's rows, in the dtype and on the device
  // of the plan (after torch::load, set_data or to).
  void CheckShards() const;
  enum class After : uint8_t { kFree, kKeepSome, kKeep };  // what Release does with the full tensors
  void Release(After after);
  void Attach(const std::shared_ptr<Use>& use);
  void OpenBackward(const std::shared_ptr<Use>& use);
  // Throw kNotSupported.
  [[noreturn]] void RefuseSecondOrder() const;
  [[noreturn]] void RefuseSparse(size_t i) const;
  void Collect(Use& use, std::span<const at::Tensor> gradients);
  void CloseBackward(Use& use);

  std::vector<UnitParameter> parameters_;
  std::vector<at::Tensor> shards_;  // handles of this rank's rows, while the parameters are full
  struct Shard {
    std::vector<int64_t> shape;
    c10::ScalarType dtype;
    c10::Device device;
  };
  std::vector<Shard> placed_;  // what each parameter holds between calls
  // The ShardNode of each parameter; null for a parameter that needs no gradient. Owned here, because autograd holds an
  // accumulator weakly and drops it when a gather changes the dtype.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  UnitOptions options_;
  UnitGroups groups_;
  FullParameters gathered_;
  GradientReduction reduction_;
  std::vector<std::shared_ptr<Use>> open_;  // uses whose backward runs
  std::vector<at::Tensor> unsynced_;        // full gradients of backwards without sync
  int users_ = 0;                           // calls and backwards that need the parameters full now
  bool sync_ = true;
};

}  // namespace moonshard
