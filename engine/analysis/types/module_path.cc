// Where an operator belongs. In a forward the stack of entered modules says it. In a backward no module is entered;
// there autograd's current node is known, and the nodes that a module's forward made are those numbered between its
// entry and the next mark (node_marks.h): one binary search an operator, and no list of nodes by module.
#include "engine/analysis/types/module_path.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

namespace moonshard {
namespace {

constexpr int32_t kOutside = 0;  // the path ""

}  // namespace

ModulePath::ModulePath() { Enter(""); }

void ModulePath::Enter(const std::string& path) {
  const auto [entry, fresh] = index_.try_emplace(path, static_cast<int32_t>(paths_.size()));
  if (fresh) paths_.push_back(path);
  entered_.push_back(entry->second);
  marks_.Mark(entered_.back());
}

void ModulePath::Leave() {
  entered_.pop_back();
  marks_.Mark(entered_.back());
}

ModulePath::Place ModulePath::Here() const {
  // entered_ always holds the root, so a size above 1 means that a module's call is open.
  // A forward within a backward, as recomputation runs it, has entered modules too.
  if (entered_.size() > 1) return {path(entered_.back()), false};
  // What autograd runs at the end of a backward, as the sum of gradients, is part of it and has no node.
  const auto node = torch::autograd::get_current_node();
  if (!node) return {path(entered_.back()), torch::autograd::get_current_graph_task_id() != -1};
  return {path(marks_.PlaceOf(*node).value_or(kOutside)), true};
}

}  // namespace moonshard
