// DeferInit: builds a model whose parameters have shapes but no storage (on the meta device), so that a model larger
// than one rank can be built, sharded and only then filled.
// Stage after: apply, which gives every parameter this rank's shard.
//
//   moonshard::nn::DeferInit defer;           // until the end of the scope, on this thread
//   LlamaForCausalLm model(config);           // moonshard::nn layers only record shape and dtype
//
// A user's own module that registers parameters takes part by making them with Empty.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

namespace moonshard::nn {

class DeferInit {
 public:
  DeferInit();
  ~DeferInit();
  DeferInit(const DeferInit&) = delete;
  DeferInit& operator=(const DeferInit&) = delete;

  // Whether a scope is open on this thread.
  static bool active();

 private:
  bool outer_;
};

// An uninitialised tensor; inside a DeferInit scope on the meta device, whatever device `options` names.
at::Tensor Empty(at::IntArrayRef sizes, const at::TensorOptions& options = {});

// Makes `parameter` hold `shard` while it stays the same tensor: members, registered handles, ties and optimizers made
// afterwards all see the new data, shape, dtype and device. requires_grad stays; the gradient is dropped, and the
// accumulator node that autograd made for the old shape. Works between any devices, from meta too, which set_data
// refuses. `shard` must own its storage alone (a narrow view would keep the full tensor alive) and not require a
// gradient; its storage is shared, not copied. `parameter` must be a leaf.
void Materialize(at::Tensor& parameter, const at::Tensor& shard);

}  // namespace moonshard::nn
