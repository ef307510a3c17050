// ResolvePlan: compiles a Plan for a model and a mesh by an ordered list of named passes.
//
//   match        Plan + ModuleTree -> MatchedPlan       engine/plan/match
//   compile      MatchedPlan + MeshShape -> CompiledPlan engine/plan/compile
//   flow, lint-* CompiledPlan -> findings               engine/plan/lint
//   checks of the model itself (ModuleTree::checks): an exported program's sizes and flow, engine/graph
//
// The command-line programs, Parallelize() and the tests all run these passes, so a plan that one of them rejects is
// rejected by all of them. The findings depend only on the plan, the module tree, the mesh and the config: not on the
// rank, the time, an address, or the order of the modules in the tree. The time of a pass is reported separately
// (PassRecord); the compiled plan and its hash do not contain it.
// Stage before: dsl/language/eval (Plan), a module tree.
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

// What one pass did. A pass that is not run (a lint on one rank) has a record too, with the reason in `made`.
struct PassRecord {
  std::string name;   // "match"
  std::string made;   // the result: "12 of 14 modules by 7 rules"
  size_t errors = 0;  // findings of this pass, by severity
  size_t warnings = 0;
  size_t notes = 0;
  double seconds = 0;  // wall time
};

// The results of the passes. `matched` is empty if match failed; `compiled` is empty if any pass reported an error.
struct Resolution {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const ModuleTree> tree;  // with the factors of adapters (adapters.h), if the plan has any
  MeshShape mesh;
  std::optional<MatchedPlan> matched;
  std::optional<CompiledPlan> compiled;  // its `findings` are equal to `diagnostics`
  Diagnostics diagnostics;               // of all passes that ran, in the order of the passes
  std::vector<PassRecord> passes;        // one for each pass that ran, in order
  // Messages of the exporter about the model, if the model is an exported program (NotesOf); set by the stage that read
  // the model.
  std::vector<std::string> notes = {};
  // How the exporter made the model's archives, if the model is an exported program (OriginsOf): an array of objects;
  // otherwise null. Set by the same stage.
  JsonValue exported = {};
};

// Runs the passes in order and returns their results. Stops after match, adapters or compile if that pass fails; where
// match fails only because rules, alternatives or sections match nothing, compile checks the styles of the other
// rules. A lint pass that reports an error does not stop the passes after it. `plan` and `tree` must not be null.
// `config`: the model's config.json; the lints compare the plan's numbers of heads with it. Null: the config is not
// available.
Resolution RunPasses(std::shared_ptr<const Plan> plan, std::shared_ptr<const ModuleTree> tree, const MeshShape& mesh,
                     const JsonValue& config = {});

// As RunPasses without a config, but returns only the compiled plan. Errors: those of MatchRules and CompilePlan,
// kUnreducedPartial of the lints, and those of the model's own checks.
Result<CompiledPlan> ResolvePlan(std::shared_ptr<const Plan> plan, std::shared_ptr<const ModuleTree> tree,
                                 const MeshShape& mesh);
// Returns the compiled plan of `resolution`, or its diagnostics if there is no compiled plan.
Result<CompiledPlan> ToResult(Resolution resolution);

// Returns a record with these values that counts the errors, warnings and notes of `found`. The stages before the
// passes (reading the model, evaluating the plan) also make their records with MakeRecord.
PassRecord MakeRecord(std::string name, std::string made, const Diagnostics& found, double seconds);

// Returns one line for each pass with its name, its time in milliseconds, its result and the number of its findings;
// then a line with the total time.
std::string PassesText(std::span<const PassRecord> passes);
// Returns [{"name", "made", "errors", "warnings", "notes", "seconds"}], in order.
JsonValue PassesJson(std::span<const PassRecord> passes);

}  // namespace moonshard
