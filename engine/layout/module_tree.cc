#include "engine/layout/module_tree.h"

#include <algorithm>

#include "engine/core/base/check.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"

namespace moonshard {
namespace {

std::string SignatureText(const ModuleTree::Signature& parameters) {
  std::string out;
  for (const Parameter& p : parameters) {
    out += " " + p.name + (p.is_buffer ? "(buffer)" : "") + ":" + ToString(p.dtype) + ShapeToString(p.shape);
  }
  return out;
}

bool IsNumber(std::string_view component) {
  return !component.empty() && std::ranges::all_of(component, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

int64_t Parameter::elements() const {
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

std::string_view ParentOf(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string PathClassOf(std::string_view path) {
  std::string out;
  out.reserve(path.size());
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view component = path.substr(begin, end - begin);
    if (IsNumber(component)) {
      out += '0';
    } else {
      out += component;
    }
    if (end < path.size()) out += '.';
    begin = end + 1;
  }
  return out;
}

void ModuleTree::Add(std::string path, std::string kind, Signature parameters, bool hookable, ModuleOrigin origin) {
  const auto index = static_cast<uint32_t>(modules_.size());
  Check(by_path_.emplace(path, index).second, "module path '" + path + "' added twice");
  const auto [signature, new_signature] =
      by_signature_.emplace(SignatureText(parameters), static_cast<uint32_t>(signatures_.size()));
  if (new_signature) signatures_.push_back(std::move(parameters));
  const auto [path_class, new_class] =
      by_class_.emplace(PathClassOf(path), static_cast<uint32_t>(class_representatives_.size()));
  if (new_class) class_representatives_.push_back(index);
  parents_.push_back(ParentNumber(path));
  if (const auto missed = missing_.find(path); missed != missing_.end()) {
    std::ranges::replace(parents_, missed->second, index);  // a tree that lists a child before its parent
  }
  modules_.push_back({std::move(path), std::move(kind), signature->second, path_class->second, hookable, origin});
}

void ModuleTree::AddFactors(size_t adapted, const std::string& name, Signature factors) {
  const std::string& path = modules_[adapted].path;
  Add(path.empty() ? name : path + "." + name, "Adapter", std::move(factors), /*hookable=*/false,
      ModuleOrigin::kMoonshard);
  modules_.back().adapts = static_cast<int64_t>(adapted);
}

// Trees list a module before what it holds, so the parent is among the ancestors of the module before: the walk up from
// there costs as many steps as the path has components that closed, O(1) a module on average.
uint32_t ModuleTree::ParentNumber(std::string_view path) {
  if (path.empty()) return kNoParent;
  const std::string_view parent = ParentOf(path);
  uint32_t candidate = modules_.empty() ? kNoParent : static_cast<uint32_t>(modules_.size() - 1);
  while (candidate < modules_.size() && modules_[candidate].path.size() > parent.size())
    candidate = parents_[candidate];
  if (candidate < modules_.size() && modules_[candidate].path == parent) return candidate;
  if (const auto found = by_path_.find(std::string(parent)); found != by_path_.end()) return found->second;
  return missing_.try_emplace(std::string(parent), kMissingParents + static_cast<uint32_t>(missing_.size()))
      .first->second;
}

void ModuleTree::AddTie(std::vector<ParamRef> same) {
  Check(same.size() > 1, "a tie of fewer than two parameters");
  ties_.push_back(std::move(same));
}

int64_t ModuleTree::Find(std::string_view path) const {
  const auto found = by_path_.find(std::string(path));
  return found == by_path_.end() ? -1 : static_cast<int64_t>(found->second);
}

bool ModuleTree::FindParameter(std::string_view path, ParamRef* found) const {
  const size_t dot = path.rfind('.');
  const int64_t module = Find(dot == std::string_view::npos ? "" : path.substr(0, dot));
  if (module < 0) return false;
  const std::string_view name = dot == std::string_view::npos ? path : path.substr(dot + 1);
  const Signature& owned = parameters(modules_[static_cast<size_t>(module)]);
  const auto it = std::ranges::find(owned, name, &Parameter::name);
  if (it == owned.end()) return false;
  *found = {static_cast<uint32_t>(module), static_cast<uint32_t>(it - owned.begin())};
  return true;
}

std::string ModuleTree::PathOf(ParamRef param) const {
  const std::string& path = modules_[param.module].path;
  return (path.empty() ? "" : path + ".") + At(param).name;
}

const Parameter& ModuleTree::At(ParamRef param) const { return parameters(modules_[param.module])[param.param]; }

int64_t ModuleTree::total_elements() const {
  int64_t sum = 0;
  for (const Module& module : modules_) {
    for (const Parameter& p : parameters(module)) sum += p.is_buffer ? 0 : p.elements();
  }
  for (const auto& tie : ties_) sum -= At(tie.front()).elements() * (static_cast<int64_t>(tie.size()) - 1);
  return sum;
}

std::string ModuleTree::ToText() const {
  std::string out;
  for (const Module& module : modules_) {
    out += (module.path.empty() ? "(root)" : Visible(module.path)) + " " +
           (module.kind.empty() ? "?" : Visible(module.kind)) +
           (module.hookable ? "" : " (calls cannot be intercepted)") + Visible(SignatureText(parameters(module))) +
           "\n";
  }
  for (const auto& tie : ties_) {
    out += "tied:";
    for (ParamRef param : tie) out += " " + Visible(PathOf(param));
    out += "\n";
  }
  return out;
}

}  // namespace moonshard
