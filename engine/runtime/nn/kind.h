// KindOf: the kind of a live module, as it appears in a ModuleTree, in a plan's `kinds` and in messages: the class of
// the module without namespaces, without "Impl" and without the hook around it. moonshard::nn::Hooked<LinearImpl> and
// torch::nn::LinearImpl are "Linear". It is separate from hook.h, because every model compiles the templates of hook.h.
#pragma once

#include <string>

#include "engine/layout/module_tree.h"

namespace torch::nn {
class Module;
}

namespace moonshard::nn {

std::string KindOf(const torch::nn::Module& module);

// Returns the origin of the class of `module` (LibTorch, moonshard or the user). `parent`: the module that contains
// `module`; nullptr for the root. Returns kWithinTorch if `parent` is of a torch::nn class other than a container
// (Sequential, ModuleList, ModuleDict).
ModuleOrigin OriginOf(const torch::nn::Module& module, const torch::nn::Module* parent);

namespace detail {
// KindOf and OriginOf from demangled class names. `parent`: "" for the root.
std::string KindFromClassName(const std::string& name);
ModuleOrigin OriginFromClassNames(const std::string& name, const std::string& parent);
}  // namespace detail

}  // namespace moonshard::nn
