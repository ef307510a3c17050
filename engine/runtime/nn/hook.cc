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
  Throw("a sharded module cannot be cloned: the copy would hold this rank's shards without the plan that joins them",
        "clone before sharding, or build a second model and shard it with the same plan");
}

void RefuseToSaveSharded() {
  Throw("torch::save of a sharded module would write this rank's shards under the names of the full tensors",
        "FullState(model) gathers the full tensors, LocalState(model) names this rank's shards; TrainingCheckpoints "
        "saves "
        "a run in shards",
        Finding::kUnshardedFunction);
}

void RefuseToLoadSharded() {
  Throw("torch::load into a sharded module would replace its shards by what the archive holds",
        "load before Parallelize, or use LoadCheckpoint(model, checkpoint), which reads this rank's shards",
        Finding::kUnshardedFunction);
}

void RefuseToCloneAsBase(const torch::nn::Module& module) {
  Throw("clone() of '" + KindOf(module) + "' returns its base class",
        "derive the class from torch::nn::Cloneable<itself>, or override clone()");
}

bool IsStale(const torch::nn::Module& module, const char* name, const at::Tensor& member) {
  const auto registered = module.named_parameters(/*recurse=*/false);
  const at::Tensor* found = registered.find(name);
  return found != nullptr && found->defined() && !found->is_same(member);
}

}  // namespace moonshard::nn::detail
