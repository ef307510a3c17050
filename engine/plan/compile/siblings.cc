#include "engine/plan/compile/siblings.h"

#include <algorithm>
#include <string>

#include "engine/plan/compile/cost.h"

namespace moonshard {

// Groups are found by walking the few groups of each parent. Whatever encloses a module that redistributes keeps the
// shared results during a call.
Siblings::Siblings(const CompiledPlan& plan) : plan_(plan), parents_(plan.tree->parents()) {
  FindMoving();
  const size_t modules = parents_.size();
  const size_t missing = plan.tree->missing_parents();
  std::vector<uint32_t> first_of_parent(modules + missing + 1, kNone);
  const auto number = [&](uint32_t parent) {
    if (parent == ModuleTree::kNoParent) return modules + missing;
    return parent < modules ? parent : modules + (parent - ModuleTree::kMissingParents);
  };
  shares_.assign(modules, false);
  encloses_.assign(modules, false);
  group_.assign(modules, kNone);
  groups_.reserve(modules);
  for (uint32_t m = 0; m < modules; ++m) {
    const uint32_t layouts = plan_.layouts_of[m];
    const std::vector<Moving>& moving = moving_[layouts];
    for (size_t i = 0; i < moving.size(); ++i) {
      const uint32_t group = GroupOf(first_of_parent[number(parents_[m])], moving[i], m);
      ++groups_[group].uses;
      if (i == 0) {
        group_[m] = group;
      } else {
        more_[m].push_back(group);
      }
    }
    if (needs_calls_[layouts]) MarkAncestors(m, encloses_);
    if (moves_[layouts]) MarkAncestors(m, shares_);
  }
}

const Siblings::Group* Siblings::Of(uint32_t module, size_t n) const {
  if (n == 0) return group_[module] == kNone ? nullptr : &groups_[group_[module]];
  const auto more = more_.find(module);
  return more == more_.end() || n > more->second.size() ? nullptr : &groups_[more->second[n - 1]];
}

// Redistributions get a number for each text, so that the comparison of siblings is one of integers. Only those with
// communication count: a change that takes no collective, or on an axis of size 1, is nothing to share.
void Siblings::FindMoving() {
  std::unordered_map<std::string, uint32_t> numbers;
  moving_.resize(plan_.layouts.size());
  const auto moves = [&](const std::optional<Redistribution>& move) { return !MovingAxes(move, plan_.mesh).empty(); };
  for (size_t s = 0; s < plan_.layouts.size(); ++s) {
    const ModuleLayouts& layouts = plan_.layouts[s];
    needs_calls_.push_back(layouts.needs_calls());
    moves_.push_back(std::ranges::any_of(layouts.inputs, moves) || std::ranges::any_of(layouts.outputs, moves));
    for (size_t i = 0; i < layouts.inputs.size(); ++i) {
      if (!moves(layouts.inputs[i])) continue;
      const std::string text = layouts.inputs[i]->from.ToText() + " -> " + layouts.inputs[i]->to.ToText();
      const auto number = numbers.try_emplace(text, static_cast<uint32_t>(numbers.size())).first->second;
      moving_[s].push_back({static_cast<int32_t>(i), number});
    }
  }
}

uint32_t Siblings::GroupOf(uint32_t& first_of_parent, const Moving& moving, uint32_t module) {
  for (uint32_t g = first_of_parent; g != kNone; g = groups_[g].next) {
    if (groups_[g].redistribution == moving.redistribution && groups_[g].position == moving.position) return g;
  }
  groups_.push_back({moving.redistribution, moving.position, module, 0, first_of_parent});
  first_of_parent = static_cast<uint32_t>(groups_.size()) - 1;
  return first_of_parent;
}

// Stops at the first ancestor that is marked, whose ancestors are marked too. So all calls together touch each module
// once, and not once for each module below it.
void Siblings::MarkAncestors(uint32_t module, std::vector<bool>& marked) {
  for (uint32_t m = module; parents_[m] != ModuleTree::kNoParent;) {
    if (parents_[m] >= parents_.size()) return MarkFromHeaders(plan_.tree->modules()[m].path, marked);
    m = parents_[m];
    if (marked[m]) return;
    marked[m] = true;
  }
}

void Siblings::MarkFromHeaders(std::string_view path, std::vector<bool>& marked) {
  while (!path.empty()) {
    path = ParentOf(path);
    if (const int64_t m = plan_.tree->Find(path); m >= 0) marked[static_cast<size_t>(m)] = true;
  }
}

}  // namespace moonshard
