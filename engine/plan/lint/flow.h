// Flow: the declared layouts on tp of the inputs and outputs of modules, and the block of each module. Modules with
// equal layouts whose paths differ only in numbers are one entry (ModuleGroup). All lints (lint.h) read a Flow.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/lint/head_counts.h"

namespace moonshard {

// The modules of one path class with the same layouts.
struct ModuleGroup {
  std::string path;   // of the path class: every number is 0
  size_t module = 0;  // index of one module of the group
  int64_t count = 0;  // number of modules
  const ModuleLayouts* layouts = nullptr;
  const ModuleTree::Signature* signature = nullptr;
  bool matrix = false;  // owns a parameter of two or more dims; buffers do not count
  bool embedding = false;
  bool convolution = false;  // by its kind and the dims of its `weight`; its features are channels, in dim 1
  bool transposed = false;   // of a convolution: the weight is [in, out, kernel...]
  int layers = -1;           // in a Flow by layers: the number of the layer's kind; -1 outside of all layers

  // Whether a layout of the module's input or output shards its features: of a convolution also dim 1.
  bool HasFeaturesIn(const Layout& layout) const;
};

class Flow {
 public:
  // `heads`: the numbers of heads that the model's config declares. Keeps a reference to `plan`.
  explicit Flow(const CompiledPlan& plan, HeadCounts heads = {});

  // Returns a Flow whose groups are divided further by kinds of layers: two layers are of one kind if their modules are
  // in the same groups. In the returned Flow, a neighbour of a group is a neighbour of every module of the group. In
  // this Flow, a group may have modules in layers of several kinds, and a neighbour in only some of these layers.
  // Returns nullopt if all layers are of one kind, since the groups would not change.
  std::optional<Flow> ByLayers() const;

  const CompiledPlan& plan() const { return plan_; }
  const HeadCounts& heads() const { return heads_; }
  // Sorted by path.
  const std::vector<ModuleGroup>& groups() const { return groups_; }

  // Returns a group for this module alone, with `count` 0.
  ModuleGroup GroupAt(size_t module) const { return MakeGroup(module); }

  // Returns the tensor dim along which tp shards the module's two-dimensional `weight`; -1 if there is no such weight,
  // or if tp does not shard it, or if one rank owns the full weight.
  int CutOfWeight(const ModuleGroup& group) const;
  // Whether tp shards the output channels (or the input channels) of a convolution's weight.
  bool CutOfChannels(const ModuleGroup& group, bool output) const;
  // Whether the module's output has sharded features. The declared outputs decide; without declared outputs, the result
  // is true if the weight is sharded along its output features and the module is not an embedding.
  bool LeavesShards(const ModuleGroup& group) const;
  // Whether the module's input has sharded features. The declared inputs decide; without declared inputs, the result is
  // true if the weight is sharded along its input features and the module is not an embedding.
  bool TakesShards(const ModuleGroup& group) const;

  // Returns all groups at or below the path `scope` ("": all groups) except `self`. If `into_lists` is false, groups in
  // lists (numbered modules) below `scope` are left out, except the siblings of `self` in its own list. In a Flow by
  // layers, groups of another kind of layer than that of `self` are left out.
  std::vector<const ModuleGroup*> Below(std::string_view scope, const ModuleGroup* self, bool into_lists) const;
  // Returns the path of the smallest subtree around `group` that contains another group with a matrix for which `other`
  // returns true; "" if there is no smaller subtree than the full tree.
  std::string_view BlockOf(const ModuleGroup& group, const std::function<bool(const ModuleGroup&)>& other) const;

  // Whether `passes` returns true for a redistribution on tp of a rule that matched no module of a tree from headers,
  // which does not list modules without parameters.
  bool AnyUnplacedRedistribution(const std::function<bool(const Layout& from, const Layout& to)>& passes) const;

  // Returns the source line of the group's rule or of default(style).
  const SourceSpan& LineOf(const ModuleGroup& group) const;
  // Returns the level of the group's rule (Rule::level): 0 in the plan itself, 1 in the plan that it extends; 0 without
  // a rule.
  int LevelOf(const ModuleGroup& group) const;
  // Returns a finding about the group, at the line of its rule, with the real path of its module.
  Diagnostic About(Finding finding, const ModuleGroup& group, std::string message) const;
  // Returns the real path of the group's module.
  const std::string& PathOf(const ModuleGroup& group) const;
  // Returns a finding about both groups, at the line of the rule with the lower level, which is in the plan that the
  // author edits; the other line is related.
  Diagnostic AboutBoth(Finding finding, const ModuleGroup& group, const ModuleGroup& other, std::string message) const;
  // Returns the real paths of the first few groups: "'a', 'b'".
  std::string Names(const std::vector<const ModuleGroup*>& groups) const;

  // Returns the number of features of a norm of the residual stream: a module with "Norm" in its kind whose parameters
  // are all vectors of one size. -1 for any other module, and for BatchNorm, GroupNorm and InstanceNorm, whose tensor
  // dim 1 is channels.
  int64_t NormSize(const ModuleGroup& group) const;
  // Whether the norm is in a layer and has siblings that own a matrix. Such a norm works inside the block of these
  // siblings (on heads, or on features that a sibling gathered), and not on the residual stream.
  bool WithinBlock(const ModuleGroup& norm) const;

 private:
  // Makes a Flow without groups; `group_of` as below.
  Flow(const CompiledPlan& plan, HeadCounts heads, std::vector<uint32_t> group_of)
      : plan_(plan), heads_(std::move(heads)), group_of_(std::move(group_of)) {}
  ModuleGroup MakeGroup(size_t module) const;

  const CompiledPlan& plan_;
  HeadCounts heads_;
  std::vector<ModuleGroup> groups_;
  std::vector<uint32_t> group_of_;  // by module: a number for its path class and layouts
};

// Whether a component of the path is a number.
bool InList(std::string_view path);
// Return the layout on tp in which the first input arrives, and in which the first output leaves; nullptr if it is not
// declared.
const Layout* ArrivesAs(const ModuleLayouts& layouts);
const Layout* LeavesAs(const ModuleLayouts& layouts);

}  // namespace moonshard
