// CompiledPlan: a plan compiled for one model and one mesh: all layouts, the steps around the calls of every module
// (module_steps.h), process groups, fsdp units, gradient sums. CompilePlan (compile.h) creates it. A CompiledPlan is
// the same on every rank; the local shapes (local_shape.h) and the collectives and bytes (cost.h) of any rank follow
// from it.
// Stage after: apply, which creates runtime objects from the compiled plan without decisions of its own; or explain.
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

// The layouts of one module. Modules with the same rule, signature and kind share one ModuleLayouts.
struct ModuleLayouts {
  int32_t rule = -1;                 // index into plan->rules; -1: unclaimed
  bool is_fallback = false;          // claimed by default(style)
  std::string style;                 // "": unclaimed
  uint32_t signature = 0;            // index into tree->signatures()
  std::vector<Placement> params;     // parallel to the signature's parameters; no negative dims
  std::vector<int32_t> param_rules;  // parallel: rule that names the parameter by its path; -1 or empty: none
  std::vector<std::optional<Redistribution>> inputs;   // by argument position
  std::vector<std::optional<Redistribution>> outputs;  // by position in the result
  std::vector<std::string> after;                      // parameters added after the first output's redistribution
  Lookup lookup = Lookup::kPlain;
  std::optional<Route> route;
  std::optional<Exchange> exchange;
  std::optional<Ring> ring;
  int64_t experts = 0;        // number of experts over all ranks, among which the ids of route or exchange choose
  std::string missing;        // the part of the style that the engine cannot run; "": none
  int64_t in_features = -1;   // full size of the first argument's last dim; -1 if the kind does not determine it
  int64_t out_features = -1;  // full size of the result's last dim; -1 likewise
  bool looks_up = false;      // the first argument is ids, which have no gradient
  bool factors = false;       // the parameters are factors of adapters (Module::adapts)

  // Whether calls must be intercepted.
  bool needs_calls() const;
  // Whether the argument at this position has a gradient, as far as the module's kind tells.
  bool HasGradient(int64_t position) const { return !looks_up || position != 0; }
  bool operator==(const ModuleLayouts&) const = default;
};

// A unit of fsdp: parameters that are gathered and resharded together, with one all-gather per dtype before the unit is
// used and one reduce-scatter per dtype of their gradients.
struct ShardedUnit {
  std::string path;  // of the module; "": the root
  // Parameters of the module and its descendants, without those of nested units; a tied tensor once; in tree order.
  std::vector<ParamRef> params;
  bool reshard = true;        // the unit is resharded after its forward
  int64_t reshard_ranks = 0;  // number of neighbouring ranks that the unit is resharded over; 0: all
  bool operator==(const ShardedUnit&) const = default;
};

// The settings that all units of a plan share.
struct UnitSettings {
  int64_t ranks = 1;                  // number of ranks that units are sharded over; 1: units only cast dtypes
  AxisSet axes = MeshAxis::kDpShard;  // the axes of these ranks
  int64_t prefetch_forward = 0;       // number of units that are gathered ahead of the unit in use
  int64_t prefetch_backward = 0;      // the same in the backward, in the reverse order
  bool keep_unsynced = false;         // units stay full after a backward without gradient sync
  bool accumulate_shards = false;     // every micro-batch reduce-scatters its gradients, not only the last
  bool offload = false;               // shards of units are in host memory
  // Torch's name of the dtype in which gradients are summed; "": the dtype of the gathered parameter.
  std::string reduce_dtype;
  bool operator==(const UnitSettings&) const = default;
};

// A module that computes in a dtype of its own, with all modules inside it.
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
  std::vector<ShardedUnit> units;      // of fsdp over several ranks, or of a plan that casts parameters; in tree order
  UnitSettings unit_settings;
  std::vector<std::string> recomputed;     // paths of modules whose activations are recomputed, sorted
  std::vector<int32_t> recompute_section;  // parallel to recomputed: index into plan->recompute
  std::vector<std::string> kept_results;   // paths of modules whose results recomputation keeps, sorted
  std::vector<ModuleDType> kept_dtypes;    // sorted by path
  bool context_parallel = false;           // the sequence is sharded on cp, and every parameter is shared on cp
  // CompileSteps fills in the members from here to sharded_dims.
  std::vector<ModuleSteps> steps;       // distinct ones
  std::vector<uint32_t> steps_of;       // per module of the tree: index into steps
  std::vector<PlannedGroup> groups;     // in the order in which they are created
  bool sums_gradients = false;          // gradients may have to be summed over ranks after a backward
  std::vector<GradientBucket> buckets;  // of ddp, in the order in which their all-reduces start
  double gradient_scale = 1;            // factor of gradients that are summed over data-parallel ranks
  // The tensor dims of activations along which a redistribution has shards; without negative dims, which the plan
  // counts from the last.
  std::set<int64_t> sharded_dims;
  // The adapters of modules, sorted by path and then by name: path and index into plan->adapters. The factors of the
  // adapters are parameters of modules at the end of `tree` (Module::adapts).
  std::vector<std::pair<std::string, int32_t>> adapted;
  // The tree without the factors, which a live model has before the plan is applied; null if there are no adapters.
  std::shared_ptr<const ModuleTree> bare_tree;
  std::vector<int64_t> rule_matches;  // per rule: number of modules and parameters that it claims
  Diagnostics findings;               // warnings and notes of all stages so far

  const ModuleLayouts& LayoutsOf(size_t module) const { return layouts[layouts_of[module]]; }
  const ModuleSteps& StepsOf(size_t module) const { return steps[steps_of[module]]; }
  // Whether ep has several ranks and a module sends its tokens to the experts on them.
  bool exchanges_tokens() const;
  // Whether cp has several ranks and attention is computed by a ring over them.
  bool attends_on_ring() const;
  // How a rank of cp has its own tokens if context_parallel: shard(1) or shard(1,zigzag), the latter with the inner
  // factor of the mesh if cp has two; the same in all modules.
  Layout own_tokens() const;
  // The tree that a live model has before the plan is applied.
  const std::shared_ptr<const ModuleTree>& live_tree() const { return bare_tree ? bare_tree : tree; }
  // The name of the adapter that is computed with and trained, which is the plan's first; "" if there is none.
  std::string active_adapter() const { return plan->adapters.empty() ? "" : plan->adapters.front().name; }
  // Whether a parameter is trained: every parameter, or, in a plan with adapters, the factors of the active adapter. A
  // buffer is not.
  bool Trains(const ModuleLayouts& of, const Parameter& parameter) const;
  bool Trains(ParamRef ref) const { return Trains(LayoutsOf(ref.module), tree->At(ref)); }

  // Returns the text that Hash() hashes: mesh, rules, sections, and every module's layouts and steps, sorted by path.
  // The text does not depend on the rank, on addresses, or on file names and line numbers, so plans with the same
  // effect have the same text.
  std::string CanonicalText() const;
  // Returns 32 hex digits (XXH3, 128 bits) of CanonicalText. Ranks compare the hash before their first collective.
  std::string Hash() const;
  // Returns one line for each module with layouts and redistributions, in tree order; for debugging and golden files.
  std::string ToText() const;
};

// Returns one line, without rule numbers or source lines.
std::string ToText(const ModuleLayouts& layouts, const ModuleTree::Signature& signature);

// Returns the plan line that decides the layouts of a module, for messages: the line of its rule or of default(style);
// for an unclaimed module a span without a line. The span belongs to the plan.
const SourceSpan& SourceOf(const CompiledPlan& plan, const ModuleLayouts& layouts);
// The same for a parameter: the line of the rule that names the parameter by its path, if there is one.
const SourceSpan& SourceOf(const CompiledPlan& plan, const ModuleLayouts& layouts, size_t param);

// For an activation [batch, sequence, features]: whether a layout shards the features (dim 2 or -1); whether a layout
// shards the sequence (dim 1 or -2).
bool ShardsFeatures(const Layout& layout);
bool ShardsSequence(const Layout& layout);
// Whether an input or output of the module has, on tp, shards of the sequence before or after its redistribution.
bool DeclaresSequenceShards(const ModuleLayouts& layouts);

}  // namespace moonshard
