#include "dsl/commands/run/full_outputs.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/base/text.h"
#include "engine/models/logits.h"

namespace moonshard {
namespace {

// `shapes`: of the shard and of the full output; "" on a rank whose shard has the full shape.
Diagnostic NotFull(const std::string& name, const std::string& shapes) {
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, (name.empty() ? "an output" : "the output '" + name + "'") +
                                                            " leaves the program as a shard, in a layout that is "
                                                            "not known");
  d.path = name;
  d.declared = shapes;
  d.required = "a layout that follows from the graph";
  d.help = "declare `output = replicate` for the module that computes it";
  return d;
}

}  // namespace

FullOutputs::FullOutputs(const ShardedModel& model) {
  const AppliedPlan& applied = *model.applied;
  const CompiledPlan& plan = applied.plan();
  const auto add = [&](const std::string& name, const std::shared_ptr<AxisGroup>& group, const Layout& layout,
                       int64_t size) {
    if (layout == Layout::Replicate() || layout.kind == LayoutKind::kShared) return;
    moves_[name].push_back(
        TensorRedistribution::Make(layout, Layout::Replicate(), group, {size, -1, "the full output '" + name + "'", 1})
            .ValueOrThrow());
  };
  if (plan.mesh.size(MeshAxis::kTp) > 1) group_ = AxisGroup::Make(applied.mesh(), MeshAxis::kTp);
  const auto program = std::dynamic_pointer_cast<Program>(model.model.module);
  if (program == nullptr) {
    const Logits logits = LogitsOf(model.model, plan);
    add("logits", group_, logits.layout, logits.vocabulary);
    if (logits.sequence.is_shard()) add("logits", AxisGroup::Make(applied.mesh(), MeshAxis::kCp), logits.sequence, -1);
    return;
  }
  const ExportedProgram& exported = program->exported();
  for (const MeshAxis axis : {MeshAxis::kTp, MeshAxis::kCp}) {
    if (plan.mesh.size(axis) == 1) continue;
    const auto group = axis == MeshAxis::kTp ? group_ : AxisGroup::Make(applied.mesh(), axis);
    const std::vector<std::optional<Layout>> layouts = program->OutputLayouts(plan, axis);
    for (size_t i = 0; i < layouts.size(); ++i) {
      if (!layouts[i]) continue;
      // A dim whose size depends on the inputs is measured when it is gathered.
      int64_t size = -1;
      const std::vector<SizeExpression>& shape = exported.outputs[i].shape;
      if (layouts[i]->is_shard() && static_cast<size_t>(layouts[i]->dim) < shape.size()) {
        const SizeExpression& full = shape[static_cast<size_t>(layouts[i]->dim)];
        if (full.op == SizeExpression::Op::kNumber) size = full.number;
      }
      add(exported.outputs[i].name, group, *layouts[i], size);
    }
  }
}

at::Tensor FullOutputs::operator()(std::string_view output, at::Tensor local) const {
  const auto moves = moves_.find(output);
  if (moves == moves_.end()) return local;
  for (const TensorRedistribution& move : moves->second) local = move(std::move(local));
  return local;
}

ProgramOutputs FullOutputs::operator()(const ProgramOutputs& local) const {
  std::vector<at::Tensor> full;
  Diagnostics errors;
  for (size_t i = 0; i < local.names().size(); ++i) {
    full.push_back((*this)(local.names()[i], local.tensors()[i]));
    const std::optional<std::vector<int64_t>>& shape = local.full_shapes()[i];
    if (shape && !full.back().sizes().equals(*shape))
      errors.push_back(NotFull(local.names()[i], ShapeToString(full.back().sizes()) + " of " + ShapeToString(*shape)));
  }
  // A shard of one rank may have the full shape: all ranks go on, or none.
  if (group_ &&
      std::ranges::any_of(group_->ExchangeNumbers(errors.empty() ? 0 : 1, CollectiveLabel("the full outputs")),
                          [](int64_t failed) { return failed != 0; })) {
    if (errors.empty()) errors.push_back(NotFull("", ""));
    throw PlanError(std::move(errors));
  }
  return {local.names(), std::move(full), std::make_shared<const ProgramOutputs::Shapes>(local.full_shapes())};
}

}  // namespace moonshard
