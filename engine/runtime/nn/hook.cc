#include "engine/runtime/nn/hook.h"

#include "engine/core/base/diagnostic.h"
#include "engine/runtime/nn/kind.h"

namespace moonshard::nn::detail {
namespace {

[[noreturn]] void Throw(std::string message, std::string help) {
  Diagnostic diagnostic = MakeDiagnostic(Finding::kNotSupported, std::move(message));
  diagnostic.help = std::move(help);
  throw PlanError({std::move(diagnostic)});
}

}  // namespace

void RefuseToCloneSharded() {
  Throw("a sharded module cannot be cloned: the copy would hold this rank's shards without the plan that joins them",
        "clone before sharding, or build a second model and shard it with the same plan");
}

void RefuseToCloneAsBase(const torch::nn::Module& module) {
  Throw("clone() of '" + KindOf(module) + "' makes its base class",
        "derive it from torch::nn::Cloneable of itself, or override clone()");
}

bool IsStale(const torch::nn::Module& module, const char* name, const at::Tensor& member) {
  const auto registered = module.named_parameters(/*recurse=*/false);
  const at::Tensor* found = registered.find(name);
  return found != nullptr && found->defined() && !found->is_same(member);
}

}  // namespace moonshard::nn::detail
