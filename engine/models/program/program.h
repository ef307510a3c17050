// Program: a model that torch.export wrote (.pt2), as a torch::nn::Module: it computes, trains and is sharded by a plan
// like a model that is written in C++, without its Python and without a line of C++ for it.
//
//   auto model = moonshard::Program::Open("model.pt2");                     // modules and parameters, without values
//   auto sharded = moonshard::Parallelize(model, plan, mesh);
//   moonshard::LoadCheckpoint(sharded, checkpoint, {.recipes = model->recipes()});
//   auto logits = sharded.forward(ids)["logits"];
//
// The program runs node by node through LibTorch's dispatcher, so that autograd, autocast, recomputation and the layout
// checker see what they would see of the original. Modules have the paths and class names of the original; a call of a
// module is the span of nodes that was made in it, with its tensors by the positions of its arguments.
//
// A program holds for the sizes that its guards allow; other sizes are an error (kProgramGuard). A directory of
// archives, each exported for other lengths, is one program: each call takes the first archive that holds for its
// sizes. All of them share the modules, and so the parameters and what a plan makes of them.
//
// Stage before: engine/io/exported_program. Stages after: engine/runtime/apply, or a host.
#pragma once

#include <concepts>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/core/base/result.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/io/exported_program/program_archive.h"
#include "engine/models/program/program_module.h"

namespace moonshard {

// What a call of a program returns: tensors by the names of the model's outputs, in its order.
class ProgramOutputs {
 public:
  ProgramOutputs(std::vector<std::string> names, std::vector<at::Tensor> tensors)
      : names_(std::move(names)), tensors_(std::move(tensors)) {}

  const std::vector<std::string>& names() const { return names_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // The tensor of that name, "logits". Throws PlanError (kBadArgument) with the names that there are.
  const at::Tensor& operator[](std::string_view name) const;
  bool Has(std::string_view name) const;

 private:
  std::vector<std::string> names_;
  std::vector<at::Tensor> tensors_;
};

// Why the program does not run under autocast (ExportedProgram::autocast_regions is false).
Diagnostic NoAutocastRegions(const ExportedProgram& program);

class Program : public ProgramModule {
 public:
  // `path`: an archive, or a directory of archives with their index (ReadProgramPath).
  // Parameters that the archive holds no values of are on the meta device until a plan is applied and a checkpoint
  // loaded. `dtype`: that of the model's computation, as InDType has it; "": as exported. Throws PlanError: as
  // ReadProgram, InDType and program::CompileProgram; kNotSupported for inputs that are no tensors.
  static std::shared_ptr<Program> Open(const std::string& path, const std::string& dtype = {});
  // `program` was read by ReadProgramPath; the values in its archives are read now.
  static Result<std::shared_ptr<Program>> FromProgram(std::shared_ptr<const ExportedProgram> program);
  // `program` was read from the archive, and has no others.
  static Result<std::shared_ptr<Program>> FromArchive(const ProgramArchive& archive,
                                                      std::shared_ptr<const ExportedProgram> program);

  Program(std::shared_ptr<const ExportedProgram> exported, std::shared_ptr<ProgramShared> shared);

  // One tensor for each of inputs(), in order. Throws PlanError: kBadInput for another number, and for sizes that the
  // program does not take; kProgramGuard for sizes that break a guard, with those that hold; NoAutocastRegions under
  // autocast.
  ProgramOutputs forward(std::vector<at::Tensor> inputs);
  template <class... Tensors>
  requires(sizeof...(Tensors) > 0 && (std::convertible_to<const Tensors&, at::Tensor> && ...)) ProgramOutputs
      forward(const Tensors&... inputs) {
    return forward(std::vector<at::Tensor>{at::Tensor(inputs)...});
  }
  // The same by name; inputs that the graph does not use may be left out.
  ProgramOutputs forward(const std::map<std::string, at::Tensor>& inputs);

  const std::vector<ProgramInput>& inputs() const { return exported_->inputs; }
  const ExportedProgram& exported() const { return *exported_; }
  // How parameters are made from the tensors of a checkpoint whose names or forms differ (NameRules::recipes).
  WeightRecipes recipes() const;
  void AddKnowledge(ModuleTree& tree) const override;
  // How the graph was compiled, for people and tests: nodes, distinct bodies, torn calls.
  std::string Summary() const;

 private:
  friend class ProgramBuilder;
  // Where a symbol has its value: a dim of an input, or of a tensor of the program.
  struct SymbolSource {
    std::string symbol;
    bool of_input = false;
    size_t index = 0;
    int64_t dim = 0;
  };
  using Symbols = std::map<std::string, int64_t, std::less<>>;

  // An archive: its graph, and where its symbols have their values.
  struct Graph {
    std::shared_ptr<const ExportedProgram> exported;
    std::vector<SymbolSource> sources;
    int32_t root = 0;  // which call of the root module runs it
  };

  void AddGraph(std::shared_ptr<const ExportedProgram> exported, int32_t root);
  std::vector<std::string> InputNames() const;
  // The first graph that holds for these sizes. Throws where none does.
  const Graph& GraphFor(const std::vector<at::Tensor>& inputs);
  // What is wrong with the sizes; empty where the graph holds.
  Diagnostics CheckSizes(const Graph& graph, const std::vector<at::Tensor>& inputs) const;
  Diagnostic NoGraphHolds(const std::vector<at::Tensor>& inputs) const;
  // Where operators make tensors, and the constants are.
  void SetDevice(const at::Device& device);

  std::shared_ptr<const ExportedProgram> exported_;  // the first archive
  std::vector<Graph> graphs_;
  std::vector<at::Tensor> constants_;
  std::mutex mutex_;                                // of `checked_` and the device, as calls may run on several threads
  std::map<std::vector<int64_t>, size_t> checked_;  // by sizes of inputs and of sharded dims: the graph that holds
  size_t distinct_bodies_ = 0;
  std::vector<std::string> torn_;
};

}  // namespace moonshard
