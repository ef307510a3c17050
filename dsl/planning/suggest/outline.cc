#include "dsl/planning/suggest/outline.h"

#include <algorithm>
#include <utility>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

bool IsNumber(std::string_view component) {
  return !component.empty() && component.size() < 10 &&
         std::ranges::all_of(component, [](char c) { return c >= '0' && c <= '9'; });
}

const Parameter* FindParameter(const Item& item, std::string_view name) {
  const auto found = std::ranges::find(*item.parameters, name, &Parameter::name);
  return found == item.parameters->end() ? nullptr : &*found;
}

struct Placed {
  std::string stack;
  int64_t layer = -1;  // none
  std::string name;
};

// The first number of a path is that of the layer; the path before it is that of the stack.
Placed Place(const std::string& path) {
  const std::vector<std::string> components = Split(path, '.');
  for (size_t i = 0; i < components.size(); ++i) {
    if (!IsNumber(components[i])) continue;
    const std::vector<std::string> before(components.begin(), components.begin() + static_cast<std::ptrdiff_t>(i));
    const std::vector<std::string> after(components.begin() + static_cast<std::ptrdiff_t>(i) + 1, components.end());
    return {Join(before, "."), std::stoll(components[i]), Join(after, ".")};
  }
  return {"", -1, path};
}

// Items that differ only in a number become one, with a "*" for the number, if they are experts: 128 experts are then
// one item for the readers and one rule in the plan. The pattern must match exactly these items. Three things prevent
// that, and then the items stay apart: items of the same pattern with other parameters (`alike` against `starred`), a
// sibling whose name is not a number but which the "*" would also match (`too_wide`), and a number without a
// repetition.
std::vector<Item> FoldExperts(const std::vector<Item>& items, int64_t experts) {
  std::map<std::pair<std::string, const ModuleTree::Signature*>, int64_t> alike;
  std::map<std::string, int64_t> starred;
  std::set<std::string> too_wide;  // patterns of which a "*" would also match what is not a number
  for (const Item& item : items) {
    const std::string name = Starred(item.name);
    ++alike[{name, item.parameters}];
    ++starred[name];
    std::vector<std::string> components = Split(name, '.');
    for (std::string& component : components) {
      if (component == "*") continue;
      const std::string kept = std::exchange(component, "*");
      too_wide.insert(Join(components, "."));
      component = kept;
    }
  }
  std::vector<Item> out;
  std::set<std::string> said;
  for (const Item& item : items) {
    const std::string name = Starred(item.name);
    const int64_t copies = alike[{name, item.parameters}];
    const bool expert = name.find("expert") != std::string::npos || (experts > 1 && copies == experts);
    if (name == item.name || too_wide.contains(name) || copies == 1 || copies != starred[name] || !expert) {
      out.push_back(item);
    } else if (said.insert(name).second) {
      out.push_back({name, item.parameters, copies});
    }
  }
  return out;
}

std::string KindText(const std::vector<Item>& items) {
  std::string out;
  for (const Item& item : items) {
    out += item.name + "|";
    for (const Parameter& p : *item.parameters) out += p.name + ShapeToString(p.shape);
    out += "|" + std::to_string(item.copies) + "\n";
  }
  return out;
}

// Whether more matrices are stored as [in, out] than as [out, in]. A bias has the size of the outputs, so each
// rectangular matrix with a bias is a vote; the majority decides for the model, since square matrices and those without
// a bias cannot show it.
bool LiesTurned(const ModuleTree& tree) {
  int64_t turned = 0;
  for (const Module& module : tree.modules()) {
    const Item item{module.path, &tree.parameters(module), 1};
    const Parameter* weight = FindParameter(item, "weight");
    const Parameter* bias = FindParameter(item, "bias");
    if (weight == nullptr || bias == nullptr || weight->shape.size() != 2 || bias->shape.size() != 1) continue;
    if (weight->shape[0] == weight->shape[1]) continue;
    turned += bias->shape[0] == weight->shape[1] ? 1 : -1;
  }
  return turned > 0;
}

// Moves single modules before the first or after the last layer out of the stack. A Sequential numbers all of its
// children: an embedding as 0, layers as 1 to n, a norm as n + 1. Layers are those with several modules with
// parameters; a kind of one module that occurs only outside of their range is not a layer. Between layers it is one,
// for instance a layer without attention.
void TakeOutEnds(Stack& stack, std::vector<Item>& outside) {
  constexpr size_t kLeastModules = 3;  // of a layer, where others in its container may be none
  std::set<int64_t> real;
  for (const LayerKind& kind : stack.kinds) {
    if (kind.items.size() >= kLeastModules) real.insert(kind.layers.begin(), kind.layers.end());
  }
  if (real.empty()) return;
  std::erase_if(stack.kinds, [&](const LayerKind& kind) {
    const bool beyond = std::ranges::none_of(
        kind.layers, [&](int64_t layer) { return layer > *real.begin() && layer < *real.rbegin(); });
    if (kind.items.size() != 1 || kind.items[0].copies > 1 || !beyond) return false;
    const Item& item = kind.items[0];
    for (const int64_t layer : kind.layers) {
      outside.push_back({(stack.path.empty() ? "" : stack.path + ".") + std::to_string(layer) +
                             (item.name.empty() ? "" : "." + item.name),
                         item.parameters, 1});
      stack.elements -= item.elements();
      std::set<int64_t>& layers = stack.layers_of[item.name];
      layers.erase(layer);
      if (layers.empty()) stack.layers_of.erase(item.name);
    }
    stack.only_layers = false;
    return true;
  });
}

}  // namespace

int64_t Item::VectorSize() const {
  int64_t size = 0;
  for (const Parameter& p : *parameters) {
    if (p.shape.size() != 1 || (size > 0 && p.shape[0] != size)) return 0;
    size = p.shape[0];
  }
  return size;
}

int64_t Item::elements() const {
  int64_t sum = 0;
  for (const Parameter& p : *parameters) sum += p.elements();
  return sum * copies;
}

std::optional<Linear> LinearOf(const Item& item, bool turned) {
  const Parameter* weight = FindParameter(item, "weight");
  if (weight == nullptr || weight->shape.size() != 2) return std::nullopt;
  const Parameter* bias = FindParameter(item, "bias");
  if (item.parameters->size() != (bias == nullptr ? 1U : 2U)) return std::nullopt;
  Linear linear{weight->shape[1], weight->shape[0], turned};
  if (turned) std::swap(linear.in, linear.out);
  return linear;
}

std::string Starred(const std::string& name) {
  std::vector<std::string> components = Split(name, '.');
  for (std::string& component : components) {
    if (IsNumber(component)) component = "*";
  }
  return Join(components, ".");
}

bool IsUnder(std::string_view name, std::string_view folder) {
  return folder.empty() || name == folder || (name.starts_with(folder) && name[folder.size()] == '.');
}

// Groups the modules by the path before their first number (a stack) and by that number (a layer). Layers with the same
// items, up to the number, are one kind, which the readers see once: a model of 100 layers has two or three kinds.
// Sizes are part of the comparison, because layers of different widths need different numbers in the plan.
Outline MakeOutline(const ModuleTree& tree, int64_t experts) {
  Outline outline;
  std::map<std::string, std::map<int64_t, std::vector<Item>>> stacks;
  for (const Module& module : tree.modules()) {
    const ModuleTree::Signature& parameters = tree.parameters(module);
    if (parameters.empty()) continue;
    Placed placed = Place(module.path);
    if (placed.layer < 0) {
      outline.outside.push_back({std::move(placed.name), &parameters, 1});
    } else {
      stacks[placed.stack][placed.layer].push_back({std::move(placed.name), &parameters, 1});
    }
  }
  for (auto& [path, layers] : stacks) {
    Stack stack;
    stack.path = path;
    std::map<std::string, size_t> kinds;
    for (auto& [layer, items] : layers) {
      items = FoldExperts(items, experts);
      for (const Item& item : items) {
        stack.layers_of[item.name].insert(layer);
        stack.elements += item.elements();
      }
      const auto [kind, is_new] = kinds.emplace(KindText(items), stack.kinds.size());
      if (is_new) stack.kinds.push_back({{}, std::move(items)});
      stack.kinds[kind->second].layers.push_back(layer);
    }
    for (const Module& module : tree.modules()) {
      if (module.path == path || !IsUnder(module.path, path)) continue;
      const std::string_view inside = std::string_view(module.path).substr(path.empty() ? 0 : path.size() + 1);
      stack.only_layers &= IsNumber(inside.substr(0, inside.find('.')));
    }
    TakeOutEnds(stack, outline.outside);
    outline.stacks.push_back(std::move(stack));
  }
  std::ranges::stable_sort(outline.outside, {}, [&](const Item& item) { return tree.Find(item.name); });
  std::ranges::stable_sort(outline.stacks, std::ranges::greater(), &Stack::elements);
  outline.turned = LiesTurned(tree);
  return outline;
}

}  // namespace moonshard
