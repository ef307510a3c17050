// KindOf: the kind of a live module, as it appears in a ModuleTree, in a plan's `kinds` and in messages: the class of
// the module without namespaces, without "Impl" and without the hook around it. moonshard::nn::Hooked<LinearImpl> and
// torch::nn::LinearImpl are "Linear". Separate from hook.h, whose templates every model compiles.
#pragma once

#include <string>

#include "engine/layout/module_tree.h"

namespace torch::nn {
class Module;
}

namespace moonshard::nn {

std::string KindOf(const torch::nn::Module& module);

// Returns where the class of `module` comes from. `parent`: the module that contains it, nullptr for the root. Inside a
// torch::nn class other than a container (Sequential, ModuleList, ModuleDict) it is kWithinTorch.
ModuleOrigin OriginOf(const torch::nn::Module& module, const torch::nn::Module* parent);

namespace detail {
// The same from demangled class names.
std::string KindFromClassName(const std::string& name);
ModuleOrigin OriginFromClassNames(const std::string& name, const std::string& parent);
}  // namespace detail

}  // namespace moonshard::nn
