#include "engine/runtime/sharded_model/initialize.h"

#include <map>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include "engine/core/base/check.h"
#include "engine/core/base/hash.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/nn/norm.h"

namespace moonshard {
namespace {

bool IsBias(const std::string& path) { return path == "bias" || path.ends_with("bias"); }

// By name of the tensor.
std::map<std::string, InitialValue, std::less<>> RecordedValues(const ExportedProgram& program) {
  using Recorded = ProgramInitial::Kind;
  std::map<std::string, InitialValue, std::less<>> values;
  for (const ProgramTensor& tensor : program.tensors) {
    if (!tensor.initial) continue;
    const std::vector<double>& numbers = tensor.initial->numbers;
    switch (tensor.initial->kind) {
      case Recorded::kConstant: values[tensor.name] = InitialValue::Constant(numbers[0]); break;
      case Recorded::kNormal: values[tensor.name] = InitialValue::Normal(numbers[1], numbers[0]); break;
      case Recorded::kUniform: values[tensor.name] = InitialValue::Uniform(numbers[0], numbers[1]); break;
      case Recorded::kValues: values[tensor.name] = InitialValue::Values(numbers); break;
    }
  }
  return values;
}

}  // namespace

// The full tensor is drawn on every rank and sliced, instead of drawing the shard: what an element gets then depends on
// its place in the full tensor and not on the mesh. The generator is seeded by the path, so adding a module changes the
// numbers of no other, and always on the CPU, since generators of devices draw other numbers.
void SetInitialValue(const AppliedPlan& model, const LiveParameter& parameter, const InitialValue& value,
                     uint64_t seed) {
  at::Tensor target = parameter.tensor.detach();
  const std::vector<double>& numbers = value.numbers;
  if (value.kind == InitialValue::Kind::kConstant) {
    target.fill_(numbers.at(0));
    return;
  }
  at::Tensor full;
  if (value.kind == InitialValue::Kind::kValues) {
    full = at::tensor(numbers, at::kDouble);
    Check(full.numel() == c10::multiply_integers(parameter.shape), "initial values for another shape");
    full = full.view(parameter.shape);
  } else {
    full = at::empty(parameter.shape, at::kFloat);
    const uint64_t own = HashOf(std::to_string(seed) + " " + parameter.path);
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(own);
    if (value.kind == InitialValue::Kind::kNormal) full.normal_(numbers.at(0), numbers.at(1), generator);
    if (value.kind == InitialValue::Kind::kUniform) full.uniform_(numbers.at(0), numbers.at(1), generator);
  }
  target.copy_(
      SliceShard(full, LocalIntervals(parameter.shape, parameter.placement, model.plan().mesh, model.mesh().rank())));
}

// A norm with an offset computes x * (1 + weight): its weight begins at 0, where others begin at 1.
InitialRule DecoderInit(double deviation) {
  return [deviation](const LiveParameter& parameter, const torch::nn::Module& module) {
    if (IsBias(parameter.path)) return InitialValue::Constant(0);
    if (parameter.shape.size() > 1) return InitialValue::Normal(deviation);
    const auto* norm = dynamic_cast<const nn::RMSNormImpl*>(&module);
    return InitialValue::Constant(norm != nullptr && norm->options.unit_offset() ? 0 : 1);
  };
}

InitialRule RecordedInit(const ExportedProgram& program, InitialRule otherwise) {
  return [values = RecordedValues(program), otherwise = std::move(otherwise)](const LiveParameter& parameter,
                                                                              const torch::nn::Module& module) {
    const auto found = values.find(parameter.path);
    return found == values.end() ? otherwise(parameter, module) : found->second;
  };
}

InitialBufferRule RecordedBufferInit(const ExportedProgram& program) {
  return [values = RecordedValues(program)](const LiveParameter& buffer) -> std::optional<InitialValue> {
    const auto found = values.find(buffer.path);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

InitialBufferRule MissingBufferInit(const ExportedProgram& program) {
  std::map<std::string, InitialValue, std::less<>> values = RecordedValues(program);
  for (const ProgramTensor& tensor : program.tensors) {
    if (!tensor.entry.empty()) values.erase(tensor.name);
  }
  std::erase_if(values, [](const auto& entry) {
    return entry.second.kind == InitialValue::Kind::kNormal || entry.second.kind == InitialValue::Kind::kUniform;
  });
  return [values = std::move(values)](const LiveParameter& buffer) -> std::optional<InitialValue> {
    const auto found = values.find(buffer.path);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

void Initialize(AppliedPlan& model, uint64_t seed, const InitialRule& rule, const InitialBufferRule& buffer_rule) {
  const c10::NoGradGuard no_grad;
  for (const LiveParameter& parameter : model.parameters()) {
    if (model.plan().LayoutsOf(parameter.ref.module).factors) continue;  // they have initial values since Apply
    if (!parameter.is_buffer) {
      SetInitialValue(model, parameter, rule(parameter, model.ModuleOf(parameter)), seed);
    } else if (buffer_rule) {
      if (const auto value = buffer_rule(parameter)) SetInitialValue(model, parameter, *value, seed);
    }
  }
}

}  // namespace moonshard
