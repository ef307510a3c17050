// ResolveModel: from a model and the requested plan to a compiled plan: chooses the plan, evaluates it (isolated or
// not) and resolves it against a module tree (engine/plan/resolve). The one way for every program: the command line and
// the REPL with the tree of a checkpoint's headers, the ranks of a run and the trainer with the tree of the live model.
//
//   config.json, tree, --plan, --mesh, --option, --isolate  --ResolveModel-->  Resolution (CompiledPlan, findings,
//                                                           passes)
//
// Stages before: a model directory's config and headers, or a live model. Stage after: explain, or
// engine/runtime/apply.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dsl/language/bind/plan_inputs.h"
#include "engine/core/base/result.h"
#include "engine/io/config/config.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/plan/resolve/resolve_plan.h"

namespace moonshard {

// A model directory and how to parallelize it: the options that most verbs share.
struct ModelOptions {
  std::string model;                           // directory in Hugging Face form, or an exported program (.pt2)
  std::string program = {};                    // an exported program of the model; "": `model`, or none
  std::string plan;                            // a file, the name of a shipped plan, hf:FILE or hf:FILE#KEY; "": chosen
  std::string mesh;                            // "tp=2,dp=4"; "": one rank
  std::map<std::string, std::string> options;  // of the plan: --option k=v
  bool isolate = false;                        // PlanInputs::isolate
};

// The file of the program: that of `program`, or `model` if it is one; "": none.
std::string ProgramPathOf(const ModelOptions& options);

struct ModelFolder {
  ModelConfig config;
  Checkpoint checkpoint;
  MeshShape mesh;
  std::shared_ptr<const ExportedProgram> program = nullptr;  // what is run instead of a reference model
};

// Reads config.json, the checkpoint's headers, the mesh and the program. `headers_only` accepts files that end after
// their header. Of a model that is a program alone the config is the one that the exporter recorded, and the checkpoint
// is empty. Errors of all at once.
Result<ModelFolder> OpenModelFolder(const ModelOptions& options, bool headers_only);

// The config of a directory, or the one that the exporter recorded where MODEL is a program. Errors: as
// ModelConfig::Read and ReadProgram; kBadInput: a program without a config.
Result<ModelConfig> ReadConfigOf(const ModelOptions& options);

// That a model which is a program alone has no weights; nothing where it has, or is a directory.
std::optional<Diagnostic> NoWeights(const ModelFolder& folder);

// The modules of the model: of its program where there is one, else those that the checkpoint's headers show.
ModuleTree TreeOf(const ModelFolder& folder);

// What a plan sees of a model, and `tree` as its modules, which must outlive the result. Isolation as in `options`.
PlanInputs InputsOf(const ModelOptions& options, const ModelConfig& config, const MeshShape& mesh,
                    const ModuleTree& tree);

// Chooses the plan (dsl/planning/choose/choose_plan.h), evaluates it and runs the passes of engine/plan/resolve.
// `wanted` as ModelOptions::plan; `inputs` hold mesh and options, and their `model` is `tree`. The first stage that
// fails reports all of its errors, with the findings of the stages before. The first pass of the result is "evaluate".
Resolution ResolveModel(const std::string& wanted, const PlanInputs& inputs, std::shared_ptr<const ModuleTree> tree);
Resolution ResolveModel(const ModelOptions& options, const ModelConfig& config, const MeshShape& mesh,
                        std::shared_ptr<const ModuleTree> tree);

// ResolveModel on the headers of a model directory; its first pass is "read". `headers_only`: see OpenModelFolder.
// Where the directory or the mesh has errors, the result holds these alone.
Resolution ResolveDirectory(const ModelOptions& options, bool headers_only = true);
// The compiled plan of ResolveDirectory alone.
Result<CompiledPlan> ResolveFromHeaders(const ModelOptions& options, bool headers_only = true);

// The largest step: sequences of its batch, tokens of a sequence, and tokens of both together.
inline constexpr int64_t kMostBatch = int64_t{1} << 20;
inline constexpr int64_t kMostSequence = int64_t{1} << 24;
inline constexpr int64_t kMostTokens = int64_t{1} << 31;

// "2,128" as batch and sequence. Errors (kBadArgument): another text, and a step larger than the above.
Result<std::pair<int64_t, int64_t>> ParseTokens(const std::string& text);

}  // namespace moonshard
