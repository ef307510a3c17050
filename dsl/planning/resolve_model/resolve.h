// Resolve: from a model directory and a command line's words to a compiled plan; the whole torch-free pipeline in two steps.
// Also used by moonshard-run, with the tree of the live model in place of that of the headers, and by the REPL, which goes
// on with a plan that has errors.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dsl/language/bind/plan_inputs.h"
#include "engine/core/base/result.h"
#include "engine/io/config/config.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/match/match.h"

namespace moonshard {

// A model directory and how to parallelize it: the part that most verbs share.
struct ModelOptions {
  std::string model;  // directory in Hugging Face form
  std::string plan;   // a file, the name of a shipped plan, hf:FILE or hf:FILE#KEY; "": chosen by architecture
  std::string mesh;   // "tp=2,dp=4"; "": one rank
  std::map<std::string, std::string> options;  // of the plan: --option k=v
  bool isolate = false;                        // PlanInputs::isolate
};

// "2,128" as batch and sequence. Errors: kBadArgument.
Result<std::pair<int64_t, int64_t>> ParseTokens(const std::string& text);

struct ModelFolder {
  ModelConfig config;
  Checkpoint checkpoint;
  MeshShape mesh;
};

// Reads config.json, the checkpoint's headers and the mesh. `headers_only` accepts files that end after their header.
// Errors of all three at once.
Result<ModelFolder> OpenModelFolder(const ModelOptions& options, bool headers_only);

// What a plan sees of the directory, and `tree` as its model, which must outlive it.
PlanInputs InputsOf(const ModelOptions& options, const ModelFolder& folder, const ModuleTree& tree);

// Evaluates the plan (or chooses one: dsl/planning/choose/choose_plan.h), matches it against `tree` and compiles it.
// The first stage that fails says all of its errors; findings of the stages before come with them.
Result<CompiledPlan> ResolvePlan(const ModelOptions& options, const ModelFolder& folder,
                                 std::shared_ptr<const ModuleTree> tree);

// Both, with the tree of the headers. `headers_only`: see OpenModelFolder.
Result<CompiledPlan> ResolveFromHeaders(const ModelOptions& options, bool headers_only = true);

// How far a plan came. Each stage has a value only where the ones before it have.
struct Resolution {
  std::shared_ptr<const Plan> plan;
  std::optional<MatchedPlan> matched;
  std::optional<CompiledPlan> compiled;
  Diagnostics diagnostics;  // of all stages that ran
};

// As ResolvePlan, stage by stage. `wanted` as ModelOptions::plan; `inputs` hold mesh and options, and its `model` is `tree`.
Resolution ResolveStages(const std::string& wanted, const PlanInputs& inputs, std::shared_ptr<const ModuleTree> tree);
// The stages after evaluation alone.
Resolution MatchAndCompile(std::shared_ptr<const Plan> plan, std::shared_ptr<const ModuleTree> tree,
                           const MeshShape& mesh);

}  // namespace moonshard
