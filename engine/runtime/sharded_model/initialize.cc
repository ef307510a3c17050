#include "engine/runtime/sharded_model/initialize.h"

#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "engine/core/base/hash.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/nn/norm.h"

namespace moonshard {
namespace {

bool IsBias(const std::string& path) { return path == "bias" || path.ends_with("bias"); }

}  // namespace

// A norm with an offset computes x * (1 + weight): its weight begins at 0, where others begin at 1.
InitialRule DecoderInit(double deviation) {
  return [deviation](const LiveParameter& parameter, const torch::nn::Module& module) {
    if (IsBias(parameter.path)) return InitialValue::Constant(0);
    if (parameter.shape.size() > 1) return InitialValue::Normal(deviation);
    const auto* norm = dynamic_cast<const nn::RMSNormImpl*>(&module);
    return InitialValue::Constant(norm != nullptr && norm->options.unit_offset() ? 0 : 1);
  };
}

// The full tensor is drawn on every rank and sliced, instead of drawing the shard: what an element gets then depends on
// its place in the full tensor and not on the mesh. The generator is seeded by the path, so adding a module changes the
// numbers of no other, and always on the CPU, since generators of devices draw other numbers.
void Initialize(AppliedPlan& model, uint64_t seed, const InitialRule& rule) {
  const c10::NoGradGuard no_grad;
  for (const LiveParameter& parameter : model.parameters()) {
    if (parameter.is_buffer) continue;
    const InitialValue value = rule(parameter, model.ModuleOf(parameter));
    at::Tensor target = parameter.tensor.detach();
    if (value.kind == InitialValue::Kind::kConstant) {
      target.fill_(value.number);
      continue;
    }
    const uint64_t own = HashOf(std::to_string(seed) + " " + parameter.path);
    at::Tensor full = at::empty(parameter.shape, at::kFloat);
    full.normal_(0, value.number, at::make_generator<at::CPUGeneratorImpl>(own));
    target.copy_(
        SliceShard(full, LocalIntervals(parameter.shape, parameter.placement, model.plan().mesh, model.mesh().rank())));
  }
}

}  // namespace moonshard
