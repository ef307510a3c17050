#include "engine/runtime/nn/defer_init.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/core/base/check.h"

namespace moonshard::nn {
namespace {

thread_local bool deferring = false;

}  // namespace

DeferInit::DeferInit() : outer_(deferring) { deferring = true; }
DeferInit::~DeferInit() { deferring = outer_; }
bool DeferInit::active() { return deferring; }

at::Tensor Empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, DeferInit::active() ? options.device(at::kMeta) : options);
}

// Gives a parameter storage, sizes and values in place. Members of modules, optimizers and ties hold the same
// TensorImpl and see the change; replacing the tensor would leave them with the old one. What belongs to the old sizes
// is dropped: the gradient, and autograd's accumulator, which would refuse gradients of the new ones.
void Materialize(at::Tensor& parameter, const at::Tensor& shard) {
  Check(parameter.defined() && shard.defined(), "Materialize of an undefined tensor");
  Check(parameter.is_leaf(), "Materialize of a parameter that is not a leaf");
  Check(!shard.requires_grad() && shard.is_leaf(), "a parameter's shard must not be part of a graph");
  Check(!parameter.is_same(shard), "a parameter cannot be its own shard");
  parameter.mutable_grad().reset();
  // The accumulator node checks gradients against the shape, dtype and device that it was made with.
  if (auto* autograd = torch::autograd::impl::get_autograd_meta(parameter)) {
    std::lock_guard<std::mutex> lock(autograd->mutex_);
    autograd->grad_accumulator_.reset();
  }
  // As set_data, but without its refusal of meta: takes over metadata and storage; autograd's metadata and the version
  // counter stay. What a scope noted of the shard (its type, for the shard's count of writes) is not the parameter's.
  parameter.unsafeGetTensorImpl()->shallow_copy_from(shard.getIntrusivePtr());
  parameter.unsafeGetTensorImpl()->set_backend_meta(nullptr);
}

}  // namespace moonshard::nn
