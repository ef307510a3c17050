// CompiledPlan: all that a model does under a plan: every layout filled in, the steps around every module's
// calls (module_steps.h), process groups, units, sums of gradients; the same on every rank. Local shapes follow from it
// for any rank (local_shape.h), collectives and bytes too (cost.h). Made by compile.h.
// Stage after: apply, which makes objects of it and decides nothing; or explain.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/core/base/diagnostic.h"
#include "engine/layout/mesh_shape.h"
#include "engine/layout/module_tree.h"
#include "engine/plan/compile/module_steps.h"
#include "engine/plan/plan/plan.h"

namespace moonshard {

// What happens to one module. Modules of one rule, signature and kind share one.
struct ModuleLayouts {
  int32_t rule = -1;                 // index into plan->rules; -1: unclaimed
  bool is_fallback = false;          // claimed by default(style)
  std::string style;                 // "" where unclaimed
  uint32_t signature = 0;            // of the tree
  std::vector<Placement> params;     // parallel to the signature's parameters; no negative dims
  std::vector<int32_t> param_rules;  // parallel: the rule that names the parameter by its path; -1, or empty: none
  std::vector<std::optional<Redistribution>> inputs;   // by argument position
  std::vector<std::optional<Redistribution>> outputs;  // by place in the result
  std::vector<std::string> after;                      // parameters added after the first output's redistribution
  Lookup lookup = Lookup::kPlain;
  std::optional<Route> route;
  int64_t experts = 0;        // number of experts that the route's ids choose from, over all ranks
  std::string missing;        // what of the style the engine cannot run yet; "": nothing
  int64_t in_features = -1;   // size of the first argument's last dim, full; -1 where the kind does not determine it
  int64_t out_features = -1;  // size of the result's last dim, full

  // Whether calls must be intercepted.
  bool needs_calls() const;
  bool operator==(const ModuleLayouts&) const = default;
};

// A unit: modules whose parameters are gathered and resharded together: one all-gather before the unit is used, one
// reduce-scatter of their gradients.
struct ShardedUnit {
  std::string path;  // of the module; "": the root
  // Of the module and its descendants, without nested units; tied ones once; in tree order.
  std::vector<ParamRef> params;
  bool reshard = true;        // goes back to shards after its forward
  int64_t reshard_ranks = 0;  // number of neighbouring ranks that those shards are over; 0: all
  bool operator==(const ShardedUnit&) const = default;
};

// What all units of a plan have in common.
struct UnitSettings {
  int64_t ranks = 1;               // number that parameters of units are sharded over; 1: units only change dtypes
  int64_t prefetch_forward = 0;    // how many units ahead of the one in use are gathered
  int64_t prefetch_backward = 0;   // the same in the backward, against the order of the forward
  bool keep_unsynced = false;      // units stay full after a backward without sync
  bool accumulate_shards = false;  // every micro-batch reduce-scatters its gradients, not only the last
  bool offload = false;            // shards of units are in host memory
  std::string reduce_dtype;  // torch's name: dtype in which gradients are summed; "": that of the gathered parameter
  bool operator==(const UnitSettings&) const = default;
};

// A module that is computed in a dtype of its own, with all that it holds.
struct ModuleDType {
  std::string path;
  std::string dtype;  // torch's name
  bool operator==(const ModuleDType&) const = default;
};

struct CompiledPlan {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const ModuleTree> tree;
  MeshShape mesh;
  std::vector<ModuleLayouts> layouts;  // distinct ones
  std::vector<uint32_t> layouts_of;    // per module of the tree: index into layouts
  std::vector<ShardedUnit> units;      // of fsdp, where dp_shard has several ranks, and of precision; in tree order
  UnitSettings unit_settings;
  std::vector<std::string> recomputed;     // paths of modules whose activations are recomputed, sorted
  std::vector<int32_t> recompute_section;  // parallel: index into plan->recompute
  std::vector<std::string> kept_results;   // paths of modules whose results recomputation keeps, sorted
  std::vector<ModuleDType> kept_dtypes;    // sorted by path
  // Made by CompileSteps from all of the above.
  std::vector<ModuleSteps> steps;    // distinct ones
  std::vector<uint32_t> steps_of;    // per module of the tree: index into steps
  std::vector<PlannedGroup> groups;  // in the order in which they are made
  bool sums_gradients = false;       // a backward may leave gradients to sum over ranks: outermost calls watch for them
  std::vector<GradientBucket> buckets;  // of ddp, in the order in which they begin
  double gradient_scale = 1;            // of gradients that are summed over data-parallel ranks
  // Dims of activations that some redistribution is from or to shards along; only dims that are counted from the front.
  std::set<int64_t> sharded_dims;
  std::vector<int64_t> rule_matches;  // per rule: modules or parameters it claims
  Diagnostics findings;               // warnings and notes of all stages so far

  const ModuleLayouts& LayoutsOf(size_t module) const { return layouts[layouts_of[module]]; }
  const ModuleSteps& StepsOf(size_t module) const { return steps[steps_of[module]]; }

  // One text for the same meaning, whatever rank, address or file path: mesh, rules and every module's layouts, sorted
  // by path. What the hash is taken over.
  std::string CanonicalText() const;
  // 32 hex digits (XXH3, 128 bits) of CanonicalText. Ranks compare it before their first collective.
  std::string Hash() const;
  // One module a line with layouts and redistributions, in tree order; for people and goldens.
  std::string ToText() const;
};

// One line, without rule numbers or source lines.
std::string ToText(const ModuleLayouts& layouts, const ModuleTree::Signature& signature);

// The plan line that decides what happens to a module, for messages: its rule's, or default(style)'s; of an unclaimed
// module a span without a line. Belongs to the plan.
const SourceSpan& SourceOf(const CompiledPlan& plan, const ModuleLayouts& layouts);
// Of the rule that names the parameter by its path where one does.
const SourceSpan& SourceOf(const CompiledPlan& plan, const ModuleLayouts& layouts, size_t param);

// What a layout shards of an activation [batch, sequence, features].
bool ShardsFeatures(const Layout& layout);
bool ShardsSequence(const Layout& layout);
// Whether a redistribution of the module, on tp, is from or to shards of the sequence.
bool DeclaresSequenceShards(const ModuleLayouts& layouts);

}  // namespace moonshard
