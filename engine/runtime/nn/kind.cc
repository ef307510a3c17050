#include "engine/runtime/nn/kind.h"

#include <string_view>
#include <typeinfo>

#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include "engine/runtime/nn/boundary.h"

namespace moonshard::nn {
namespace {

// Where the first template argument or the parameter list of `name` ends: the first ',' or '>' outside brackets.
size_t EndOfArgument(std::string_view name) {
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<' || name[i] == '(') ++depth;
    if (depth == 0 && (name[i] == ',' || name[i] == '>')) return i;
    if (name[i] == '>' || name[i] == ')') --depth;
  }
  return name.size();
}

}  // namespace

ModuleOrigin OriginOf(const torch::nn::Module& module, const torch::nn::Module* parent) {
  return detail::OriginFromClassNames(c10::demangle(typeid(module).name()),
                                      parent == nullptr ? "" : c10::demangle(typeid(*parent).name()));
}

ModuleOrigin detail::OriginFromClassNames(const std::string& name, const std::string& parent) {
  constexpr std::string_view kTorch = "torch::nn::";
  const bool in_container =
      parent.starts_with("torch::nn::SequentialImpl") || parent.starts_with("torch::nn::Module");  // -List, -Dict
  if (parent.starts_with(kTorch) && !in_container) return ModuleOrigin::kWithinTorch;
  if (name.starts_with(kTorch)) return ModuleOrigin::kTorch;
  return name.starts_with("moonshard::nn::") && !name.starts_with("moonshard::nn::Hooked<") ? ModuleOrigin::kMoonshard
                                                                                            : ModuleOrigin::kHost;
}

std::string KindOf(const torch::nn::Module& module) {
  if (const auto* hook = dynamic_cast<const Hookable*>(&module); hook != nullptr && !hook->Kind().empty()) {
    return std::string(hook->Kind());
  }
  return detail::KindFromClassName(c10::demangle(typeid(module).name()));
}

std::string detail::KindFromClassName(const std::string& name) {
  constexpr std::string_view kHook = "moonshard::nn::Hooked<";
  constexpr std::string_view kSuffix = "Impl";
  std::string_view kind = name;
  // Hooked<Impl, Types<Arguments...>>: its first argument.
  if (kind.starts_with(kHook)) {
    kind.remove_prefix(kHook.size());
    kind = kind.substr(0, EndOfArgument(kind));
  }
  // Namespaces are removed from the head alone: a class template keeps its own arguments, "Stack<float>".
  size_t arguments = kind.find('<');
  std::string_view head = kind.substr(0, arguments);
  std::string_view tail = arguments == std::string_view::npos ? std::string_view() : kind.substr(arguments);
  size_t scope = head.rfind("::");
  if (scope != std::string_view::npos) head.remove_prefix(scope + 2);
  if (head.ends_with(kSuffix) && head.size() > kSuffix.size()) head.remove_suffix(kSuffix.size());
  return std::string(head) + std::string(tail);
}

}  // namespace moonshard::nn
