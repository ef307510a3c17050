// KindOf: the kind of a live module, as a ModuleTree, a plan's `kinds` and messages name it: its class without
// namespaces, without "Impl" and without the hook around it. moonshard::nn::Hooked<LinearImpl> and
// torch::nn::LinearImpl are "Linear". Apart from hook.h, whose templates every model compiles.
#pragma once

#include <string>

#include "engine/layout/module_tree.h"

namespace torch::nn {
class Module;
}

namespace moonshard::nn {

std::string KindOf(const torch::nn::Module& module);

// Where its class comes from. `parent` is what holds the module, nullptr for the root: what a torch::nn class other
// than a container holds is kWithinTorch.
ModuleOrigin OriginOf(const torch::nn::Module& module, const torch::nn::Module* parent);

namespace detail {
// The same from a demangled class name.
std::string KindFromClassName(const std::string& name);
ModuleOrigin OriginFromClassNames(const std::string& name, const std::string& parent);
}  // namespace detail

}  // namespace moonshard::nn
