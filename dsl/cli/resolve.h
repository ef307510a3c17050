// Resolve: from a model folder and a command line's words to a compiled plan; the whole torch-free pipeline in two steps.
// Also used by moonshard-run, with the tree of the live model in place of that of the headers.
#pragma once

#include <memory>

#include "dsl/cli/options.h"
#include "engine/base/result.h"
#include "engine/compile/compiled_plan.h"
#include "engine/safetensors/checkpoint.h"
#include "engine/safetensors/config.h"

namespace moonshard {

struct ModelFolder {
  ModelConfig config;
  Checkpoint checkpoint;
  MeshShape mesh;
};

// Reads config.json, the checkpoint's headers and the mesh. `headers_only` accepts files that end after their header.
// Errors of all three at once.
Result<ModelFolder> OpenModelFolder(const ModelOptions& options, bool headers_only);

// Evaluates the plan (or chooses one: dsl/eval/choose_plan.h), matches it against `tree` and compiles it.
// The first stage that fails says all of its errors; findings of the stages before come with them.
Result<CompiledPlan> ResolvePlan(const ModelOptions& options, const ModelFolder& folder,
                                 std::shared_ptr<const ModuleTree> tree);

// Both, with the tree of the headers. `headers_only`: see OpenModelFolder.
Result<CompiledPlan> ResolveFromHeaders(const ModelOptions& options, bool headers_only = true);

}  // namespace moonshard
