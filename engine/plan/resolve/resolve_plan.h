// ResolvePlan: the one way from a Plan to a CompiledPlan: an ordered list of named passes.
//
//   match        Plan + ModuleTree -> MatchedPlan       engine/plan/match
//   compile      MatchedPlan + MeshShape -> CompiledPlan engine/plan/compile
//   flow, lint-* CompiledPlan -> findings               engine/plan/lint
//   checks of the model itself (ModuleTree::checks): an exported program's sizes and flow, engine/graph
//
// The programs, Parallelize() and tests resolve through it, so that a plan that one of them refuses is refused by all,
// and the findings of a plan on a module tree and a mesh are the same everywhere. They are a function of the arguments:
// nothing in them depends on the rank, the clock, an address, or the order of the tree's modules. The time of a pass is
// reported separately (PassRecord) and is not part of the compiled plan, or hashed or compared. Stage before:
// dsl/language/eval (Plan), a module tree.
// Stage after: engine/runtime/apply, engine/plan/explain.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"
#include "engine/layout/mesh_shape.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/match/match.h"

namespace moonshard {

// What one pass did. A pass that does not apply (lint on one rank) has a record too, whose `made` gives the reason.
struct PassRecord {
  std::string name;   // "match"
  std::string made;   // "12 of 14 modules by 7 rules"
  size_t errors = 0;  // findings of this pass, by severity
  size_t warnings = 0;
  size_t notes = 0;
  double seconds = 0;  // wall time
};

// How far a plan came. Each stage has a value only where the ones before it have.
struct Resolution {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const ModuleTree> tree;
  MeshShape mesh;
  std::optional<MatchedPlan> matched;
  std::optional<CompiledPlan> compiled;  // its `findings` are `diagnostics`
  Diagnostics diagnostics;               // of all passes that ran, in their order
  std::vector<PassRecord> passes;        // those that ran, in order
};

// Runs the passes until one makes no input for the next, and returns the results so far. All lint passes run, also
// after one that found an error; any error leaves `compiled` empty. The pointers must not be null.
// `config`: config.json of the model, with which numbers of heads are compared; null: unknown.
Resolution RunPasses(std::shared_ptr<const Plan> plan, std::shared_ptr<const ModuleTree> tree, const MeshShape& mesh,
                     const JsonValue& config = {});

// Returns only the compiled plan. Errors: those of MatchRules and CompilePlan, and kUnreducedPartial of lint, and those
// of the model's own checks.
Result<CompiledPlan> ResolvePlan(std::shared_ptr<const Plan> plan, std::shared_ptr<const ModuleTree> tree,
                                 const MeshShape& mesh);
Result<CompiledPlan> ToResult(Resolution resolution);

// The record of a pass that took `seconds`, made `made` and found `found`: for a stage that runs before these.
PassRecord MakeRecord(std::string name, std::string made, const Diagnostics& found, double seconds);

// One line for each pass with its time, its product and the number of its findings; then the sum of the times.
std::string PassesText(std::span<const PassRecord> passes);
// [{"name", "made", "errors", "warnings", "notes", "seconds"}], in order.
JsonValue PassesJson(std::span<const PassRecord> passes);

}  // namespace moonshard
