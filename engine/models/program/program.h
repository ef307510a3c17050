// Program: a model that torch.export wrote (.pt2), as a torch::nn::Module. A Program runs, trains and is sharded by a
// plan like a model that is written in C++, without Python and without C++ code for the model.
//
//   auto model = moonshard::Program::Open("model.pt2");                     // modules and parameters, without values
//   auto sharded = moonshard::Parallelize(model, plan, mesh);
//   moonshard::LoadCheckpoint(sharded, checkpoint, {.recipes = model->recipes()});
//   auto logits = sharded.forward(ids)["logits"];
//
// Of the two branches of torch.cond one runs (run_body.h).
//
// The program runs node by node through LibTorch's dispatcher, so that autograd, autocast, recomputation and the layout
// checker work as with the original model. Modules have the paths and class names of the original. A call of a module
// is the span of nodes that the export traced in this call; tensors of the call have the positions of the original
// arguments.
//
// A program is valid for the sizes that its guards allow; other sizes are an error (kProgramGuard). A directory of
// archives, each exported for other lengths or other inputs (with a padding mask, with positions), is one program: each
// call runs the first archive that takes exactly the given inputs and is valid for their sizes. All archives share the
// modules, and so the parameters and their shards.
//
// Stage before: engine/io/exported_program. Stages after: engine/runtime/apply, or a C++ application.
#pragma once

#include <concepts>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/core/base/result.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/io/exported_program/program_archive.h"
#include "engine/layout/layout.h"
#include "engine/models/program/program_module.h"

namespace moonshard {

struct CompiledPlan;  // engine/plan/compile/compiled_plan.h

// The results of a call of a program: tensors with the names of the model's outputs, in the order of the outputs. A
// result that is a number is a tensor without dims: int64, float64 or bool.
class ProgramOutputs {
 public:
  // The shape of a result; nullopt if it depends on data.
  using Shapes = std::vector<std::optional<std::vector<int64_t>>>;

  ProgramOutputs(std::vector<std::string> names, std::vector<at::Tensor> tensors,
                 std::shared_ptr<const Shapes> full_shapes)
      : names_(std::move(names)), tensors_(std::move(tensors)), full_shapes_(std::move(full_shapes)) {}

  const std::vector<std::string>& names() const { return names_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // The shapes that the results of the model without a plan have for these inputs. Under a plan, a result that leaves
  // the model as a shard has another shape.
  const Shapes& full_shapes() const { return *full_shapes_; }
  // Returns the tensor with this name ("logits"). Throws PlanError (kBadArgument) if no output has this name.
  const at::Tensor& operator[](std::string_view name) const;
  bool Has(std::string_view name) const;

 private:
  std::vector<std::string> names_;
  std::vector<at::Tensor> tensors_;
  std::shared_ptr<const Shapes> full_shapes_;
};

// Returns the error (kNotSupported) of a call under autocast if ExportedProgram::autocast_regions is false.
Diagnostic NoAutocastRegions(const ExportedProgram& program);

class Program : public ProgramModule {
 public:
  // `path`: an archive, or a directory of archives with their index (ReadProgramPath). Parameters without values in the
  // archive are on the meta device until a plan is applied and a checkpoint is loaded. `dtype`: of the model's
  // computation (InDType); "": as exported. Throws PlanError: the errors of ReadProgramPath, InDType and
  // program::CompileProgram; kNotSupported for an input that is a number.
  static std::shared_ptr<Program> Open(const std::string& path, const std::string& dtype = {});
  // `program`: a result of ReadProgramPath. Reads the values from the program's archives. `dtype`: as for Open. Errors:
  // those of Open.
  static Result<std::shared_ptr<Program>> FromProgram(std::shared_ptr<const ExportedProgram> program,
                                                      const std::string& dtype = {});
  // `program` was read from `archive` and has no other archives (ExportedProgram::others).
  static Result<std::shared_ptr<Program>> FromArchive(const ProgramArchive& archive,
                                                      std::shared_ptr<const ExportedProgram> program);

  Program(std::shared_ptr<const ExportedProgram> exported, std::shared_ptr<ProgramShared> shared);

  // Runs the program. `inputs`: one tensor for each of inputs(), in order; an undefined tensor is an input that is not
  // given. Throws PlanError: kBadInput for a wrong number of inputs, a wrong shape, or a set of inputs that no archive
  // takes; kProgramGuard for sizes that violate a guard, with the valid sizes; NoAutocastRegions under autocast;
  // kNotSupported in evaluation mode if the archives are only for training (ExportedProgram::evaluates).
  ProgramOutputs forward(std::vector<at::Tensor> inputs);
  template <class... Tensors>
  requires(sizeof...(Tensors) > 0 && (std::convertible_to<const Tensors&, at::Tensor> && ...)) ProgramOutputs
      forward(const Tensors&... inputs) {
    return forward(std::vector<at::Tensor>{at::Tensor(inputs)...});
  }
  // As above, with inputs by name; inputs that the graph does not use may be left out. Also throws kBadInput for a
  // missing or unknown name.
  ProgramOutputs forward(const std::map<std::string, at::Tensor>& inputs);
  // Throws what a call with these names and shapes would throw, autocast aside, in the module's mode, and runs nothing.
  // The tensors may be on the meta device. Returns the full shapes of the results.
  std::shared_ptr<const ProgramOutputs::Shapes> CheckCall(const std::map<std::string, at::Tensor>& inputs);

  // The inputs of all archives (InputsOf).
  const std::vector<ProgramInput>& inputs() const { return inputs_; }
  const ExportedProgram& exported() const { return *exported_; }
  // Returns how parameters are computed from the tensors of a checkpoint with other names or shapes
  // (NameRules::recipes).
  WeightRecipes recipes() const;
  // Returns the layout along `axis`, tp or cp, in which each output leaves under a plan that was compiled for this
  // program; nullopt where neither the rules (engine/graph/local_sizes.h) nor a trial (trial/trial.h) tell it.
  std::vector<std::optional<Layout>> OutputLayouts(const CompiledPlan& plan, MeshAxis axis = MeshAxis::kTp) const;
  void AddKnowledge(ModuleTree& tree) const override;
  // Returns one line about the compiled graph, for reports and tests: the numbers of nodes, modules and distinct calls,
  // and the names of torn modules (CallTree::torn).
  std::string Summary() const;

 private:
  friend class ProgramBuilder;
  // The source of a symbol's value: a dim of an input or of a tensor of the program.
  struct SymbolSource {
    std::string symbol;
    bool of_input = false;
    size_t index = 0;
    int64_t dim = 0;
  };
  using Symbols = std::map<std::string, int64_t, std::less<>>;

  // One archive: its graph, and the sources of its symbols.
  struct Graph {
    std::shared_ptr<const ExportedProgram> exported;
    std::vector<SymbolSource> sources;
    std::vector<size_t> slots;  // parallel to exported->inputs: the index in inputs()
    int32_t root = 0;           // the call of the root module that runs the graph
  };

  void AddGraph(std::shared_ptr<const ExportedProgram> exported, int32_t root);
  std::vector<std::string> InputNames() const;
  // The tensors in the order of inputs(); undefined where an input is not given. Throws PlanError (kBadInput) for a
  // missing or unknown name.
  std::vector<at::Tensor> InOrder(const std::map<std::string, at::Tensor>& inputs) const;
  // Whether the graph is that of the module's mode. A program of which no archive was exported in training runs these
  // archives in both modes.
  bool IsOfMode(const Graph& graph) const;
  // The error (kNotSupported) of an evaluation for which no archive was exported.
  Diagnostic NotForEvaluation() const;
  // Whether the graph has all inputs that are given, and all inputs that the graph uses are given.
  bool Takes(const Graph& graph, const std::vector<at::Tensor>& inputs) const;
  // The error (kBadInput) of a set of inputs that no graph takes.
  Diagnostic NoGraphTakes(const std::vector<at::Tensor>& inputs) const;
  struct Checked {
    size_t graph = 0;
    std::shared_ptr<const ProgramOutputs::Shapes> shapes;
  };
  // Returns the first graph of the module's mode that takes these inputs and is valid for their sizes, and the full
  // shapes of its outputs. Throws PlanError if there is none.
  Checked GraphFor(const std::vector<at::Tensor>& inputs);
  // The values of the symbols for these inputs. A symbol that is a size of a parameter has the local size, or the full
  // size if `full`.
  Symbols SymbolsOf(const Graph& graph, const std::vector<at::Tensor>& inputs, bool full) const;
  // Returns the errors of these sizes; empty if the graph is valid for them.
  Diagnostics CheckSizes(const Graph& graph, const std::vector<at::Tensor>& inputs) const;
  Diagnostic NoGraphHolds(const std::vector<at::Tensor>& inputs) const;
  // Sets the device on which operators make tensors, and copies the constants to the device.
  void SetDevice(const at::Device& device);

  std::shared_ptr<const ExportedProgram> exported_;  // the first archive
  std::vector<ProgramInput> inputs_;
  std::vector<Graph> graphs_;
  std::vector<at::Tensor> constants_;
  std::mutex mutex_;  // protects `checked_` and the device: calls may run on several threads
  std::map<std::vector<int64_t>, Checked> checked_;  // by the sizes of inputs and of sharded dims
  size_t distinct_bodies_ = 0;
  std::vector<std::string> torn_;
};

}  // namespace moonshard
