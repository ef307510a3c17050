// ResolveModel: chooses the plan of a model, evaluates the plan (with `isolate`, in a child process) and resolves it
// against a module tree (engine/plan/resolve). The result is the compiled plan and all findings. Used by moonshard, by
// moonshard-run and by C++ programs that embed moonshard. The command line and the REPL resolve against a tree made
// from checkpoint headers; ranks and the trainer resolve against the tree of the live model.
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
#include <vector>

#include "dsl/language/bind/plan_inputs.h"
#include "engine/core/base/result.h"
#include "engine/graph/program_checks.h"
#include "engine/io/checkpoint/stored_adapter.h"
#include "engine/io/config/config.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/plan/resolve/resolve_plan.h"

namespace moonshard {

// A model and how to parallelize it: the options that most verbs share.
struct ModelOptions {
  // A directory in Hugging Face form, or an exported program: an archive (.pt2) or a directory of archives.
  std::string model;
  std::string program = {};  // an exported program of the model; "": `model` if it is a program, else none
  std::string plan;          // a file, the name of a shipped plan, hf:FILE or hf:FILE#KEY; "": chosen by ChoosePlan
  std::string mesh;          // "tp=2,dp=4"; "": one rank
  std::map<std::string, std::string> options;  // of the plan: --option k=v
  // Adapters, whose sections replace those of the plan (adapter_options.h): directories in the form of PEFT, as
  // NAME=DIR or DIR, or new adapters, as rank=8,target=q_proj. At most one of the two lists has elements.
  std::vector<std::string> adapters = {};
  std::vector<std::string> lora = {};
  std::string active = {};  // the adapter that is computed with and trained; "": the plan's first
  bool isolate = false;     // PlanInputs::isolate
};

// The path of the exported program: `program`, or `model` if it is a program; "": none.
std::string ProgramPathOf(const ModelOptions& options);

// What MODEL and --program give: the one form in which every verb reads a model.
struct ModelFolder {
  ModelConfig config;
  Checkpoint checkpoint;
  MeshShape mesh;
  std::shared_ptr<const ExportedProgram> program = nullptr;  // runs in place of a reference model; null: none
  bool is_program = false;  // MODEL is the program: there is no directory, and the weights are those in the archive
  std::vector<StoredAdapter> adapters = {};
};

// Reads config.json, the checkpoint's headers, the mesh, the program and the adapters. `headers_only` accepts
// safetensors files without data. If `options.model` is a program, the config is the one that the exporter recorded
// (empty if it recorded none), and the checkpoint is empty. The errors of all files are returned together. Errors also:
// kFileNotFound: `options.model` is no directory, or a directory with archives but without their index; kBadArgument:
// both `options.model` and `options.program` are programs, and not the same.
Result<ModelFolder> OpenModelFolder(const ModelOptions& options, bool headers_only);
// As OpenModelFolder, for a model that gets new weights: the checkpoint is not read, and is empty.
Result<ModelFolder> OpenModelWithoutWeights(const ModelOptions& options);

// Returns the number of tokens that the model knows: vocab_size of the config or of the text model in it, else the last
// dim of the program's logits. nullopt: neither is known.
std::optional<int64_t> VocabularyOf(const ModelFolder& folder);

// Returns the config of the model directory or, if `options.model` is a program, the config that the exporter recorded.
// Errors: those of ModelConfig::Read and ReadProgram; kBadInput: a program without a config.
Result<ModelConfig> ReadConfigOf(const ModelOptions& options);

// Returns an error (kMissingTensor) if the model is only a program that was exported without weights, else nullopt.
std::optional<Diagnostic> NoWeights(const ModelFolder& folder);

// Returns the modules of the model: from the program if there is one, else from the headers of the checkpoint.
// `trials`: as for AddProgramKnowledge.
ModuleTree TreeOf(const ModelFolder& folder, TrialsOf trials = {});

// The inputs for evaluating a plan for this model. The result points to `tree`, which must outlive it.
PlanInputs InputsOf(const ModelOptions& options, const ModelConfig& config, const MeshShape& mesh,
                    const ModuleTree& tree);

// Chooses the plan (dsl/planning/choose/choose_plan.h), evaluates it and runs the passes of engine/plan/resolve.
// `wanted`: as ModelOptions::plan. `inputs.model` must be `tree.get()`. Stops after the first stage that has errors;
// the result has all errors of that stage and the findings of the earlier stages. Its first pass is "evaluate".
// `adapters`: sections in place of those of the plan; empty: those of the plan. `active`: the adapter that becomes the
// plan's first; "": the plan's first stays. The second form makes the inputs with InputsOf, and the sections from
// `options.adapters` or `options.lora`; kBadArgument if both are given.
Resolution ResolveModel(const std::string& wanted, const PlanInputs& inputs, std::shared_ptr<const ModuleTree> tree,
                        const std::vector<Adapter>& adapters = {}, const std::string& active = {});
Resolution ResolveModel(const ModelOptions& options, const ModelConfig& config, const MeshShape& mesh,
                        std::shared_ptr<const ModuleTree> tree);

// Runs ResolveModel on the headers of a model directory; the first pass of the result is "read". `headers_only`: see
// OpenModelFolder. `trials`: see TreeOf. If the directory or the mesh has errors, the result contains these errors and
// no plan.
Resolution ResolveDirectory(const ModelOptions& options, bool headers_only = true, TrialsOf trials = {});
// As ResolveDirectory, but returns only the compiled plan.
Result<CompiledPlan> ResolveFromHeaders(const ModelOptions& options, bool headers_only = true);

// Limits of --tokens BATCH,SEQUENCE: sequences in the batch, tokens in a sequence, and their product.
inline constexpr int64_t kMostBatch = int64_t{1} << 20;
inline constexpr int64_t kMostSequence = int64_t{1} << 24;
inline constexpr int64_t kMostTokens = int64_t{1} << 31;

// Parses "2,128" as {batch, sequence}. Errors: kBadArgument for text of another form and for numbers beyond the limits
// above.
Result<std::pair<int64_t, int64_t>> ParseTokens(const std::string& text);

}  // namespace moonshard
