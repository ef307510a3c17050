// Outline: the structure of a module tree: the stacks of numbered layers, with the layers of a stack grouped into kinds
// of equal layers, and the modules outside of the stacks.
// Stage before: the module tree. Stage after: layer.h, ends.h.
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

// A linear module, y = x W'.
struct Linear {
  int64_t in = 0;
  int64_t out = 0;
  bool turned = false;  // its weight is stored as [in, out]: Conv1D of GPT-2
};

// A module that owns parameters.
struct Item {
  std::string name;  // path within the layer, "" for the layer itself; outside of stacks, the full path
  const ModuleTree::Signature* parameters = nullptr;
  int64_t copies = 1;  // number of equal experts that are folded into this item: "mlp.experts.*.w1"

  // The size of the parameters if all are vectors of one size, else 0.
  int64_t VectorSize() const;
  // Elements of the parameters, in all copies.
  int64_t elements() const;
};

struct LayerKind {
  std::vector<int64_t> layers;
  std::vector<Item> items;  // in tree order
};

struct Stack {
  std::string path;  // "model.layers"
  std::vector<LayerKind> kinds;
  std::map<std::string, std::set<int64_t>> layers_of;  // by an item's name: the layers that have the item
  int64_t elements = 0;
  bool only_layers = true;  // the container holds nothing but layers
};

struct Outline {
  std::vector<Stack> stacks;  // the largest first
  std::vector<Item> outside;
  bool turned = false;  // matrices of this model are stored as [in, out]
};

// Makes the outline of a tree, which must outlive it. Experts are folded into one item if their parameters are equal
// and either their path contains "expert" or their number is `experts`. A single module before the first or after the
// last layer of a container (an embedding, a norm or a head in one torch.nn.Sequential with the layers) is outside of
// the stack.
Outline MakeOutline(const ModuleTree& tree, int64_t experts);

// Returns the matrix of an item that owns a weight of two dims and no other parameter except a bias; nullopt for any
// other item.
std::optional<Linear> LinearOf(const Item& item, bool turned);

// "mlp.experts.*.w1" for "mlp.experts.3.w1"; the name itself if no component is a number.
std::string Starred(const std::string& name);

// Whether `name` is `folder` or within it. Every name is within "".
bool IsUnder(std::string_view name, std::string_view folder);

}  // namespace moonshard
