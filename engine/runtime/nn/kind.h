// KindOf: the kind of a live module, as a ModuleTree, a plan's `kinds` and messages name it: its class without namespaces,
// without "Impl" and without the hook around it. moonshard::nn::Hooked<LinearImpl> and torch::nn::LinearImpl are "Linear".
// Apart from hook.h, whose templates every model compiles.
#pragma once

#include <string>

namespace torch::nn {
class Module;
}

namespace moonshard::nn {

std::string KindOf(const torch::nn::Module& module);

namespace detail {
// The same from a demangled class name.
std::string KindFromClassName(const std::string& name);
}  // namespace detail

}  // namespace moonshard::nn
