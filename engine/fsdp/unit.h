// Unit: parameters that lie in pieces over an axis and are whole while a call of their module, or its backward, runs. One
// all-gather makes them whole, one reduce-scatter brings the sum of the ranks' gradients back to the pieces.
//
// A parameter stays the same tensor throughout. Between calls it is a leaf that holds this rank's piece, as an optimizer
// wants it. While it is whole it is the output of a node of autograd's graph (unit_graph.h), so gradients of the whole
// never reach its .grad: the node collects them, and what ends in .grad is the piece's.
//
//   Enter      gather; forward runs on the whole parameters
//   Leave      back to pieces (unless the unit keeps what it gathered for the backward)
//   ~ backward through an output: gather again; gradients are collected
//   ~ the gradient of the inputs is there, or the backward ends: back to pieces, reduce-scatter, .grad
//
// A module may be called several times before a backward, in the middle of another's backward (recomputation), under
// no_grad, and end with an exception. Gradients are those of the mean (or sum) over the axis, accumulated in .grad as
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

#include "engine/collective/axis_group.h"
#include "engine/fsdp/flat_pieces.h"
#include "engine/layout/backward_end.h"
#include "engine/layout/gradient_sum.h"
#include "engine/nn/boundary.h"

namespace moonshard {

struct UnitParameter {
  at::Tensor tensor;           // the registered one, a leaf that holds this rank's rows
  std::vector<int64_t> shape;  // of what is gathered
};

struct UnitOptions {
  std::string path;     // of the module, for errors and labels
  bool reshard = true;  // back to pieces after a forward whose backward may follow
  double scale = 1;     // of the summed gradients
};

class Unit : public std::enable_shared_from_this<Unit> {
 public:
  // One call: from Enter to the end of its backward.
  struct Use;

  // `sum` gets the pieces' gradients of those parameters that it sums over further axes.
  Unit(std::vector<UnitParameter> parameters, UnitOptions options, std::shared_ptr<AxisGroup> group,
       std::shared_ptr<BackwardEnd> end, std::shared_ptr<GradientSum> sum);

  // Makes the parameters whole: collective unless they are. Replaces tensors that need a gradient by ones that tell when
  // it is there. Every Enter is followed by one Leave or Abandon.
  std::shared_ptr<Use> Enter(std::span<const TensorSlot> arguments);
  void Leave(const std::shared_ptr<Use>& use, std::span<const TensorSlot> results);
  // The call ended by an exception.
  void Abandon(const std::shared_ptr<Use>& use);

  // Ends the backwards that are open: back to pieces, gradients to .grad. Collective.
  void EndBackward();
  // Forgets calls and backwards that an exception ended, and what was gathered.
  void Reset();
  // false: gradients wait, whole, for a backward under true, which brings all to .grad.
  void SetGradientSync(bool sync) { sync_ = sync; }

  const std::string& path() const { return options_.path; }
  // Bytes that gathered parameters take now.
  int64_t gathered_bytes() const;

 private:
  friend class UnitNode;
  friend class UnitInputNode;

  // Parameters of one dtype: one buffer a collective.
  struct Flat {
    std::vector<size_t> members;  // indices of parameters
    FlatPieces pieces;            // the extra elements: one flag a parameter, whether any rank has a gradient
  };

  void MakeWhole(Direction direction);
  void Release(bool keep);
  void Gather(Direction direction);
  void Free();
  void Attach(const std::shared_ptr<Use>& use);
  void OpenBackward(const std::shared_ptr<Use>& use);
  void Collect(Use& use, std::span<const at::Tensor> gradients);
  void Close(Use& use);
  void ReduceGradients(std::vector<at::Tensor> gradients);

  std::vector<UnitParameter> parameters_;
  std::vector<at::Tensor> whole_;   // of each parameter; without storage while it is not gathered
  std::vector<at::Tensor> pieces_;  // handles of the rows, while the parameters are whole
  std::vector<Flat> flats_;
  UnitOptions options_;
  std::shared_ptr<AxisGroup> group_;
  std::shared_ptr<BackwardEnd> end_;
  std::shared_ptr<GradientSum> sum_;
  CollectiveLabel gather_label_;
  CollectiveLabel reduce_label_;
  std::vector<std::shared_ptr<Use>> open_;  // whose backward runs
  std::vector<at::Tensor> waiting_;         // whole gradients of backwards without sync
  int users_ = 0;                           // calls and backwards that need the parameters whole now
  bool filled_ = false;                     // whether whole_ has values
  bool sync_ = true;
};

}  // namespace moonshard
