// DeferInit: builds a model whose parameters have shapes but no storage (on the meta device). A model larger than the
// memory of one rank can then be built and sharded before its values are loaded.
// Stage after: apply, which gives every parameter storage for this rank's shard.
//
//   moonshard::nn::DeferInit defer;           // until the end of the scope, on this thread
//   LlamaForCausalLm model(config);           // moonshard::nn layers only record shape and dtype
//
// A user's own module supports DeferInit if it makes the parameters that it registers with Empty.
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

// Returns an uninitialised tensor. Inside a DeferInit scope the tensor is on the meta device, and the device of
// `options` is ignored.
at::Tensor Empty(at::IntArrayRef sizes, const at::TensorOptions& options = {});

// Makes `parameter` hold `shard` while it stays the same tensor: members, registered handles, tied parameters and all
// other references get the new data, shape, dtype and device. requires_grad is unchanged; the gradient, and the
// accumulator node that autograd made for the old data, are dropped. Supports all devices, also a parameter on meta,
// which set_data rejects. `parameter` must be a leaf. `shard` must not require a gradient, and must be the only owner
// of its storage, because a narrow view would keep the full tensor alive. Afterwards `parameter` shares the storage of
// `shard`.
void Materialize(at::Tensor& parameter, const at::Tensor& shard);

}  // namespace moonshard::nn
