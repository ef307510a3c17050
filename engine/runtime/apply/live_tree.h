// LiveTree: the ModuleTree of a live model, with the modules, hooks and tensors that the indices of the tree refer to.
// Stage after: match.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/core/base/result.h"
#include "engine/layout/module_tree.h"
#include "engine/runtime/nn/boundary.h"

namespace torch::nn {
class Module;
}

namespace moonshard {

struct LiveTree {
  std::shared_ptr<const ModuleTree> tree;
  // `modules` and `hooks` are parallel to tree->modules(). The model owns the modules. hooks[m] is nullptr if the calls
  // of module m cannot be intercepted.
  std::vector<torch::nn::Module*> modules;
  std::vector<Hookable*> hooks;
  // tensors[m][p] is the registered tensor of parameter p of module m: a handle to the same TensorImpl.
  std::vector<std::vector<at::Tensor>> tensors;
};

// Reads modules in registration order, and of each module its own parameters and then its own buffers. Parameters with
// the same TensorImpl are tied. Shapes are the current shapes, so call ReadLiveTree before a plan is applied. Errors:
// kNotSupported for a tensor whose dtype a plan cannot contain (scalar_type.h has no DType for it); kStaleMember for a
// module whose member `weight` or `bias` is not the tensor registered under that name.
Result<LiveTree> ReadLiveTree(torch::nn::Module& root);

}  // namespace moonshard
