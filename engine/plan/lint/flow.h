// Flow: what each module declares to take and to leave on tp, with one entry for all modules whose paths differ only in
// numbers, and the blocks they are in. The common input of all lints (lint.h).
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
  std::string path;   // of the class: every number is 0
  size_t module = 0;  // one of them
  int64_t count = 0;  // how many
  const ModuleLayouts* layouts = nullptr;
  const ModuleTree::Signature* signature = nullptr;
  bool matrix = false;  // owns a parameter of two or more dims, buffers left out
  bool embedding = false;
  int layers = -1;  // of a Flow by layers: which kind of layer; -1 outside of all lists
};

class Flow {
 public:
  // `heads`: what the model's config declares.
  explicit Flow(const CompiledPlan& plan, HeadCounts heads = {});

  // The Flow by layers: only modules of layers that are alike as a whole are one group, so that what is around a group
  // is what its modules have around them. Here the groups are fewer, and may have in one layer what they lack in
  // another. Nothing where all layers are alike, for the groups are the same then.
  std::optional<Flow> ByLayers() const;

  const CompiledPlan& plan() const { return plan_; }
  const HeadCounts& heads() const { return heads_; }
  // Sorted by path.
  const std::vector<ModuleGroup>& groups() const { return groups_; }

  // A group of this module alone.
  ModuleGroup GroupAt(size_t module) const { return MakeGroup(module); }

  // The tensor dim of the module's matrix `weight` that tp shards; -1 if there is none, or another form of shard.
  int CutOfWeight(const ModuleGroup& group) const;
  // Whether features leave sharded: declared by an output; without a declared output, by a weight sharded along dim 0.
  bool LeavesShards(const ModuleGroup& group) const;
  // Whether features are taken sharded: declared by an input; without a declared input, by a weight sharded along dim
  // 1.
  bool TakesShards(const ModuleGroup& group) const;

  // All groups at or below `scope` ("": all of them) but `self`. `into_lists` false: of lists below it only `self`'s
  // own one, where `self` is directly in it.
  std::vector<const ModuleGroup*> Below(std::string_view scope, const ModuleGroup* self, bool into_lists) const;
  // The smallest part of the tree around the group in which another matrix passes `other`; "" where only the full tree
  // is that.
  std::string_view BlockOf(const ModuleGroup& group, const std::function<bool(const ModuleGroup&)>& other) const;

  // Whether a redistribution passes of a rule that matched nothing because headers do not list its module.
  bool AnyUnplacedRedistribution(const std::function<bool(const Layout& from, const Layout& to)>& passes) const;

  const SourceSpan& LineOf(const ModuleGroup& group) const;
  // The level of the plan that has the rule: 0 is the plan itself, 1 the one it extends.
  int LevelOf(const ModuleGroup& group) const;
  // A finding about the group: its rule's line, its module's real path.
  Diagnostic About(Finding finding, const ModuleGroup& group, std::string message) const;
  const std::string& PathOf(const ModuleGroup& group) const;
  // A finding about both: at the line of the lower level, which is the author's own, with the other line as related.
  Diagnostic AboutBoth(Finding finding, const ModuleGroup& group, const ModuleGroup& other, std::string message) const;
  // "'a', 'b'" of the first few.
  std::string Names(const std::vector<const ModuleGroup*>& groups) const;

  // The features of a norm, a module that owns only vectors of one size; -1 for any other module.
  int64_t NormSize(const ModuleGroup& group) const;
  // Whether projections are siblings of a norm: it then works within their block, on heads or on what they gathered,
  // and not on the residual stream.
  bool WithinBlock(const ModuleGroup& norm) const;

 private:
  // Without groups; `group_of` as below.
  Flow(const CompiledPlan& plan, HeadCounts heads, std::vector<uint32_t> group_of)
      : plan_(plan), heads_(std::move(heads)), group_of_(std::move(group_of)) {}
  ModuleGroup MakeGroup(size_t module) const;

  const CompiledPlan& plan_;
  HeadCounts heads_;
  std::vector<ModuleGroup> groups_;
  std::vector<uint32_t> group_of_;  // by module: the number of its path class with its layouts
};

// Whether one of the path's components is a number.
bool InList(std::string_view path);
// The layout on tp of the first input as it arrives, or of the first output as it leaves; nullptr if none is declared.
const Layout* ArrivesAs(const ModuleLayouts& layouts);
const Layout* LeavesAs(const ModuleLayouts& layouts);

}  // namespace moonshard
