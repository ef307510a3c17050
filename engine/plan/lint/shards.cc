// Sharded features between modules: a colwise projection leaves them, a rowwise one takes them, and each needs a
// partner in its block. A partner is searched upwards in the tree, in the smallest part that has another matrix,
// because a block may nest its projections in modules of its own.
//
// Two ways to lack a partner:
//   - nothing in the block has the other side (FindUnpaired);
//   - the sibling that should be the partner, by its features, is sharded the same way (AddFacing): gate, up and down
//     all colwise. The search for a partner then goes on to the full layer, finds attention's, and reports nothing.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/lint/flow.h"
#include "engine/plan/lint/lint.h"

namespace moonshard {
namespace {

std::string Quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

// The block's path with the numbers of the group's own module.
std::string BlockName(const Flow& flow, const ModuleGroup& group, std::string_view block) {
  std::string_view path = flow.PathOf(group);
  const auto depth = [](std::string_view p) { return std::ranges::count(p, '.'); };
  while (depth(path) > depth(block)) path = ParentOf(path);
  return block.empty() ? "the model" : Quoted(path);
}

std::string DeclaredLayoutOf(const ModuleGroup& group, bool output) {
  const auto& redistributions = output ? group.layouts->outputs : group.layouts->inputs;
  for (const std::optional<Redistribution>& redistribution : redistributions) {
    if (!redistribution) continue;
    const Layout& layout = (output ? redistribution->to : redistribution->from)[MeshAxis::kTp];
    if (group.HasFeaturesIn(layout)) {
      return (output ? "the output leaves as " : "the input arrives as ") + layout.ToText() + ", by style '" +
             group.layouts->style + "'";
    }
  }
  return output ? "a weight whose output features are sharded" : "a weight whose input features are sharded";
}

// Groups of one block that lack a partner, and the others there that own a matrix.
struct Unpaired {
  std::vector<const ModuleGroup*> groups;
  std::vector<const ModuleGroup*> others;
};

// A block's path and, in a Flow by layers, the kind of layer that it is in.
using Block = std::pair<std::string, int>;

// By block. `makes`: which groups need a partner; `partner`: which groups are one. `into_lists`: whether a partner may
// be inside a list below the block.
template <class Makes, class Partner>
std::map<Block, Unpaired> FindUnpaired(const Flow& flow, const Makes& makes, const Partner& partner, bool into_lists) {
  std::map<Block, Unpaired> out;
  const auto other = [&](const ModuleGroup& group) { return !makes(group) || partner(group); };
  for (const ModuleGroup& group : flow.groups()) {
    if (!makes(group) || partner(group)) continue;
    const std::string_view block = flow.BlockOf(group, other);
    const std::vector<const ModuleGroup*> around = flow.Below(block, &group, into_lists || InList(block));
    if (std::ranges::any_of(around, [&](const ModuleGroup* s) { return partner(*s); })) continue;
    Unpaired& unpaired = out[{std::string(block), group.layers}];
    unpaired.groups.push_back(&group);
    if (unpaired.groups.size() > 1) continue;
    for (const ModuleGroup* s : around) {
      if (s->matrix && other(*s)) unpaired.others.push_back(s);
    }
  }
  return out;
}

// Keeps of the others those that take as many features as one of the groups leaves, if there are any. (Makers are not
// told so: keys and values have fewer features than the module behind the attention takes.)
void KeepTakers(Unpaired& unpaired) {
  const auto takes = [&](const ModuleGroup* other) {
    const int64_t features = other->layouts->in_features;
    return features >= 0 && std::ranges::count(unpaired.groups, features, [](const ModuleGroup* group) {
                              return group->layouts->out_features;
                            }) > 0;
  };
  if (std::ranges::any_of(unpaired.others, takes)) std::erase_if(unpaired.others, std::not_fn(takes));
}

Diagnostic AboutUnpaired(const Flow& flow, Finding finding, const Unpaired& unpaired, const std::string& singular,
                         const std::string& plural, const std::string& rest) {
  const bool one = unpaired.groups.size() == 1;
  const std::string message = flow.Names(unpaired.groups) + (one ? singular : plural) + rest;
  const ModuleGroup& first = *unpaired.groups.front();
  return unpaired.others.empty() ? flow.About(finding, first, message)
                                 : flow.AboutBoth(finding, first, *unpaired.others.front(), message);
}

// Whether of two siblings one feeds the other, by their features: the side of `group` that faces `other` has as many
// features as `other` has on its side, and more than either has on its outer side. Up and down projections of an MLP
// are such, whatever their styles.
bool Faces(const ModuleGroup& group, const ModuleGroup& other, bool group_makes) {
  const ModuleLayouts& a = *group.layouts;
  const ModuleLayouts& b = *other.layouts;
  const int64_t from = group_makes ? a.out_features : b.out_features;
  const int64_t to = group_makes ? b.in_features : a.in_features;
  const int64_t outer =
      std::max(group_makes ? a.in_features : a.out_features, group_makes ? b.out_features : b.in_features);
  return other.matrix && b.rule >= 0 && from == to && from > outer;
}

// Adds to `found` the groups whose facing sibling is not a partner, unless another sibling is one.
template <class Makes, class Partner>
void AddFacing(const Flow& flow, const Makes& makes, const Partner& partner, bool group_makes,
               std::map<Block, Unpaired>& found) {
  for (const ModuleGroup& group : flow.groups()) {
    const Block block = {std::string(ParentOf(group.path)), group.layers};
    if (!makes(group) || partner(group) || !InList(group.path) || found.contains(block)) continue;
    const ModuleGroup* facing = nullptr;
    bool has_partner = false;
    for (const ModuleGroup& other : flow.groups()) {
      if (&other == &group || ParentOf(other.path) != block.first || other.layers != group.layers) continue;
      has_partner |= partner(other);
      if (facing == nullptr && Faces(group, other, group_makes)) facing = &other;
    }
    if (facing != nullptr && !has_partner) found[block] = {{&group}, {facing}};
  }
}

// What lacks a partner: first by path and layouts alone, where one group stands for all layers; then by layers, for
// groups that the first search found a partner for in other layers than their own (a plan that treats one layer
// differently). `search` returns what it finds in a Flow; `layers`: flow.ByLayers(). The first search comes first so
// that a fault of several kinds of layers is one finding.
template <class Search>
std::vector<std::pair<std::string, Unpaired>> UnpairedOf(const Flow& flow, const std::optional<Flow>& layers,
                                                         const Search& search) {
  std::vector<std::pair<std::string, Unpaired>> out;
  std::set<std::pair<std::string, const ModuleLayouts*>> known;
  const auto add = [&](const Flow& groups) {
    for (auto& [block, unpaired] : search(groups)) {
      const bool fresh = std::ranges::none_of(unpaired.groups, [&](const ModuleGroup* group) {
        return known.contains({group->path, group->layouts});
      });
      for (const ModuleGroup* group : unpaired.groups) known.insert({group->path, group->layouts});
      if (fresh) out.emplace_back(block.first, unpaired);
    }
  };
  add(flow);
  if (layers) add(*layers);
  return out;
}

void LintNotTaken(const Flow& flow, const std::optional<Flow>& layers, Diagnostics& diagnostics) {
  const auto makes = [&](const ModuleGroup& s) { return flow.LeavesShards(s); };
  const auto takes = [&](const ModuleGroup& s) { return flow.TakesShards(s); };
  const auto search = [&](const Flow& groups) {
    std::map<Block, Unpaired> found = FindUnpaired(groups, makes, takes, /*into_lists=*/true);
    AddFacing(groups, makes, takes, /*group_makes=*/true, found);
    return found;
  };
  for (auto& [block, unpaired] : UnpairedOf(flow, layers, search)) {
    if (block.empty()) continue;  // a head: the loss takes its shards
    KeepTakers(unpaired);
    const ModuleGroup& first = *unpaired.groups.front();
    Diagnostic d =
        AboutUnpaired(flow, Finding::kShardsNotTaken, unpaired, " leaves sharded features", " leave sharded features",
                      ", and no module in " + BlockName(flow, first, block) + " takes sharded features");
    d.declared = DeclaredLayoutOf(first, /*output=*/true);
    d.required = "a following module that takes shard(-1), as rowwise does";
    d.help = "rowwise {} for the module that takes this output (in this block: " + flow.Names(unpaired.others) +
             "), or output = replicate, which gathers the features";
    diagnostics.push_back(std::move(d));
  }
}

void LintNotMade(const Flow& flow, const std::optional<Flow>& layers, Diagnostics& diagnostics) {
  if (flow.AnyUnplacedRedistribution([](const Layout&, const Layout& to) { return ShardsFeatures(to); })) return;
  const auto makes = [&](const ModuleGroup& s) { return flow.LeavesShards(s); };
  const auto takes = [&](const ModuleGroup& s) { return flow.TakesShards(s); };
  const auto search = [&](const Flow& groups) {
    std::map<Block, Unpaired> found = FindUnpaired(groups, takes, makes, /*into_lists=*/false);
    AddFacing(groups, takes, makes, /*group_makes=*/false, found);
    return found;
  };
  for (const auto& [block, unpaired] : UnpairedOf(flow, layers, search)) {
    const ModuleGroup& first = *unpaired.groups.front();
    Diagnostic d =
        AboutUnpaired(flow, Finding::kShardsNotMade, unpaired, " takes sharded features", " take sharded features",
                      ", and no module in " + BlockName(flow, first, block) + " leaves sharded features");
    d.declared = DeclaredLayoutOf(first, /*output=*/false);
    if (first.embedding) {
      d.required = "an input that arrives as replicate: ids are not features";
      d.help = "vocab_rowwise {} shards an embedding by its rows, colwise {} by its features";
    } else {
      d.required = "a preceding module that leaves shard(-1), as colwise does";
      d.help = "colwise {} for the module that computes this input" +
               (unpaired.others.empty() ? "" : " (in this block: " + flow.Names(unpaired.others) + ")") +
               ", or input = replicate: each rank then takes its shard of the full input";
    }
    diagnostics.push_back(std::move(d));
  }
}

}  // namespace

void LintShards(const Flow& flow, Diagnostics& diagnostics) {
  const std::optional<Flow> layers = flow.ByLayers();
  LintNotTaken(flow, layers, diagnostics);
  LintNotMade(flow, layers, diagnostics);
}

}  // namespace moonshard
