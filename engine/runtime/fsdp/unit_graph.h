// The two nodes that a unit's call puts into autograd's graph.
//
//   UnitNode        the gather. Its outputs are the full parameters. Its edges to the shards' accumulators carry
//                   nothing, because the unit itself brings the gradients to the shards: autograd::grad finds them
//                   (unit.h).
//   UnitInputNode   the identity on the call's arguments. It runs when their gradients are complete, and then the
//                   call's backward is over: the engine runs ready nodes in reverse order of creation, and this node
//                   was created before all others of the call.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "engine/runtime/fsdp/unit.h"

namespace moonshard {

struct Unit::Use {
  std::weak_ptr<torch::autograd::Node> node;  // UnitNode; none where no parameter needs a gradient
  std::vector<size_t> trainable;              // parameters, in the order of the node's outputs
  std::vector<at::Tensor> gradients;          // by parameter, full, of the open backward
  int64_t place = -1;                         // in the order of the forward (unit_order.h)
  bool left = false;
  bool open = false;
};

class UnitNode final : public torch::autograd::Node {
 public:
  UnitNode(std::weak_ptr<Unit> unit, std::shared_ptr<Unit::Use> use);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "UnitNode"; }

 private:
  // Throws kUnshardedFunction where the current backward is an autograd::grad for one of the shards.
  void RefuseToCapture() const;
  std::weak_ptr<Unit> unit_;
  std::shared_ptr<Unit::Use> use_;
};

// The accumulator of a leaf that holds a shard, in the place of autograd's own, which refuses to run while the
// parameter is gathered and so no leaf, even without a gradient. With one it does what autograd's does.
class ShardNode final : public torch::autograd::Node {
 public:
  explicit ShardNode(const at::Tensor& shard);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "ShardNode"; }
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& tensor_pre_hooks() noexcept override {
    return accumulate_->tensor_pre_hooks();
  }
  std::unique_ptr<torch::autograd::PostAccumulateGradHook>& tensor_post_acc_grad_hooks() const noexcept override {
    return accumulate_->tensor_post_acc_grad_hooks();
  }

 private:
  std::shared_ptr<torch::autograd::AccumulateGrad> accumulate_;
};

class UnitInputNode final : public torch::autograd::Node {
 public:
  UnitInputNode(std::weak_ptr<Unit> unit, std::shared_ptr<Unit::Use> use, torch::autograd::edge_list&& edges);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "UnitInputNode"; }

 private:
  std::weak_ptr<Unit> unit_;
  std::shared_ptr<Unit::Use> use_;
};

// Puts a UnitInputNode before the arguments that need a gradient.
void MarkInputs(const std::shared_ptr<Unit>& unit, const std::shared_ptr<Unit::Use>& use,
                std::span<const TensorSlot> arguments);

}  // namespace moonshard
