#include "engine/runtime/nn/hook.h"

#include "engine/core/base/diagnostic.h"
#include "engine/runtime/nn/kind.h"

namespace moonshard::nn::detail {
namespace {

[[noreturn]] void Throw(std::string message, std::string help, Finding finding = Finding::kNotSupported) {
  Diagnostic diagnostic = MakeDiagnostic(finding, std::move(message));
  diagnostic.help = std::move(help);
  throw PlanError({std::move(diagnostic)});
}

}  // namespace

void RefuseToCloneSharded() {
  Throw("a sharded module cannot be cloned: the copy would hold this rank's shards and have no plan",
        "clone the module before Parallelize, or build a second model and call Parallelize with the same plan");
}

void RefuseToSaveSharded() {
  Throw("torch::save of a sharded module would write this rank's shards under the names of the full tensors",
        "use FullState(model), which gathers the full tensors, LocalState(model), which returns this rank's shards, or "
        "TrainingCheckpoints, which saves a training run as shards",
        Finding::kUnshardedFunction);
}

void RefuseToLoadSharded() {
  Throw("torch::load into a sharded module would replace its shards by the full tensors of the archive",
        "load before Parallelize, or use LoadCheckpoint(model, checkpoint), which reads this rank's shards",
        Finding::kUnshardedFunction);
}

void RefuseToCloneAsBase(const torch::nn::Module& module) {
  Throw("clone() of '" + KindOf(module) + "' returns an object of its base class",
        "derive the class from torch::nn::Cloneable<itself>, or override clone()");
}

bool IsStale(const torch::nn::Module& module, const char* name, const at::Tensor& member) {
  const auto registered = module.named_parameters(/*recurse=*/false);
  const at::Tensor* found = registered.find(name);
  return found != nullptr && found->defined() && !found->is_same(member);
}

}  // namespace moonshard::nn::detail
