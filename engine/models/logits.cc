#include "engine/models/logits.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "engine/core/base/check.h"
#include "engine/graph/local_sizes.h"
#include "engine/models/program/program.h"

namespace moonshard {
Logits LogitsOf(const ExportedProgram& program, const CompiledPlan& plan) {
  const auto output = std::ranges::find(program.outputs, "logits", &ProgramOutput::name);
  Check(output != program.outputs.end(), "a causal language model without logits");
  const auto index = static_cast<size_t>(output - program.outputs.begin());
  const ProgramArgument& logits = program.graph.outputs[index];
  Check(logits.kind == ProgramArgument::Kind::kValue, "logits that are no value");
  Logits out;
  out.layout = OutputLayouts(program, plan)[index].value_or(Layout::Replicate());
  out.vocabulary = program.values[logits.value].sizes.back();
  if (plan.context_parallel)
    out.sequence = OutputLayouts(program, plan, MeshAxis::kCp)[index].value_or(Layout::Replicate());
  return out;
}

Logits LogitsOf(const CausalLm& model, const CompiledPlan& plan) {
  if (const auto program = std::dynamic_pointer_cast<Program>(model.module)) return LogitsOf(program->exported(), plan);
  const int64_t head = plan.tree->Find(model.head_path);
  Check(head >= 0, "a reference model without its head");
  ParamRef weight;
  Check(plan.tree->FindParameter(model.head_path + ".weight", &weight), "a head without a weight");
  Logits out;
  out.vocabulary = plan.tree->At(weight).shape[0];
  const ModuleLayouts& layouts = plan.LayoutsOf(static_cast<size_t>(head));
  if (!layouts.outputs.empty() && layouts.outputs[0] && plan.mesh.size(MeshAxis::kTp) > 1)
    out.layout = layouts.outputs[0]->to[MeshAxis::kTp];
  if (plan.context_parallel && !layouts.outputs.empty() && layouts.outputs[0])
    out.sequence = layouts.outputs[0]->to[MeshAxis::kCp];
  return out;
}

}  // namespace moonshard
