// KindOf: what a live module is called in a ModuleTree, a plan's `kinds` and messages: the name of its class without
// namespaces, without "Impl" and without the hook around it: moonshard::nn::Hooked<LinearImpl> is "Linear", and so is
// torch::nn::LinearImpl.
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
