// Outline: the structure of a module tree: stacks of numbered layers, layers of a stack that are alike up to their
// number as one kind, and the modules outside of the stacks. Stage before: the module tree. Stage after: layer.h,
// ends.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/layout/module_tree.h"

namespace moonshard {

// A matrix that is used as y = x W'.
struct Linear {
  int64_t in = 0;
  int64_t out = 0;
  bool turned = false;  // its weight is stored as [in, out]: Conv1D of GPT-2
};

// A module that owns parameters.
struct Item {
  std::string name;  // its path within the layer, "" for the layer itself; outside of stacks its full path
  const ModuleTree::Signature* parameters = nullptr;
  int64_t copies = 1;  // experts that are alike are one item, "mlp.experts.*.w1"

  // The size where all parameters are vectors of one size; 0 where they are not.
  int64_t VectorSize() const;
  int64_t elements() const;
};

struct LayerKind {
  std::vector<int64_t> layers;
  std::vector<Item> items;  // in tree order
};

struct Stack {
  std::string path;  // "model.layers"
  std::vector<LayerKind> kinds;
  std::map<std::string, std::set<int64_t>> layers_of;  // by an item's name: in which layers it is
  int64_t elements = 0;
  bool only_layers = true;  // the container has no other modules
};

struct Outline {
  std::vector<Stack> stacks;  // the largest first
  std::vector<Item> outside;
  bool turned = false;  // matrices of this model are stored as [in, out]
};

// Experts are folded if they are alike and their path contains "expert" or their number is `experts`. A single module
// before the first or after the last layer of a container (an embedding, a norm or a head in one torch.nn.Sequential
// with the layers) is outside of the stack. `tree` must outlive the outline.
Outline MakeOutline(const ModuleTree& tree, int64_t experts);

// The matrix of an item that owns a weight of two dims and nothing else but a bias; nothing for any other.
std::optional<Linear> LinearOf(const Item& item, bool turned);

// "mlp.experts.*.w1" for "mlp.experts.3.w1"; the name itself where nothing in it is a number.
std::string Starred(const std::string& name);

// Whether `name` is `directory` or in it; everything is in "".
bool IsUnder(std::string_view name, std::string_view folder);

}  // namespace moonshard
