// LiveTree: the ModuleTree of a live model, and the live things behind its indices.
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
  // Parallel to tree->modules(). The model owns the modules; `hooks` holds nullptr where calls cannot be intercepted.
  std::vector<torch::nn::Module*> modules;
  std::vector<Hookable*> hooks;
  // tensors[m][p] is the registered tensor of parameter p of module m: a handle to the same TensorImpl.
  std::vector<std::vector<at::Tensor>> tensors;
};

// Modules in registration order, each with its own parameters, then its buffers. Parameters that are one TensorImpl are
// a tie. Shapes are those the tensors have now: call it before a plan is applied.
// Errors: kNotSupported for a tensor whose type no checkpoint can hold; kStaleMember for a module whose member is not
// the tensor it has registered.
Result<LiveTree> ReadLiveTree(torch::nn::Module& root);

}  // namespace moonshard
