// Unit graph: the nodes that a unit puts into autograd's graph.
//
//   UnitNode        the node of the all-gather. Its outputs are the full parameters. Its edges lead to the accumulators
//                   of the shards. No gradient passes along the edges, because the unit itself reduces the gradients to
//                   the shards; the edges only make autograd::grad run the node (unit.h).
//   UnitInputNode   the identity on the call's arguments. It runs when the gradients of the arguments are complete. The
//                   backward of the call is over then, because the engine runs ready nodes in reverse order of
//                   creation, and this node was created before all other nodes of the call (but for the start of an
//                   exchange of tokens, which reads no parameter).
//   ShardNode       the accumulator of a leaf that holds a shard.
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
  std::weak_ptr<torch::autograd::Node> node;  // UnitNode; expired if no parameter needs a gradient
  std::vector<size_t> trainable;              // indices of parameters, in the order of the node's outputs
  std::vector<at::Tensor> gradients;          // per parameter: the full gradient of the open backward
  int64_t place = -1;                         // in the order of the forward (unit_order.h)
  bool left = false;                          // whether Leave or Abandon has run
  bool open = false;                          // whether its backward runs
};

class UnitNode final : public torch::autograd::Node {
 public:
  UnitNode(std::weak_ptr<Unit> unit, std::shared_ptr<Unit::Use> use);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "UnitNode"; }

 private:
  // Throws kUnshardedFunction if the current backward is an autograd::grad that requests one of the shards.
  void RefuseToCapture() const;
  std::weak_ptr<Unit> unit_;
  std::shared_ptr<Unit::Use> use_;
};

// The accumulator of a leaf that holds a shard. It replaces autograd's own accumulator, which fails even without a
// gradient if it runs while the parameter is gathered and therefore not a leaf. With a gradient it does what autograd's
// accumulator does.
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

// Makes one UnitInputNode for all arguments that need a gradient, and replaces each of these arguments by a view whose
// grad_fn is this node.
void MarkInputs(const std::shared_ptr<Unit>& unit, const std::shared_ptr<Unit::Use>& use,
                std::span<const TensorSlot> arguments);

}  // namespace moonshard
