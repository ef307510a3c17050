// The table of step kinds: a row has all that is known of a kind without a module. Its order is that of StepKind, which
// is the order in which steps run.
#include <algorithm>
#include <array>
#include <string>

#include "engine/core/base/text.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/compile/module_steps.h"

namespace moonshard {
namespace {

using Redistributions = std::vector<std::optional<Redistribution>>;

std::string Redistributed(const ModuleStep& step, const Redistributions& of) {
  const Redistribution& move = *of[static_cast<size_t>(step.position)];
  return " " + std::to_string(step.position) + ": " + move.from.ToText() + " -> " + move.to.ToText() + " on " +
         ToString(step.axis);
}

std::string OfInput(const ModuleStep& step, const ModuleSteps& steps, const CompiledPlan& plan) {
  std::string out = Redistributed(step, plan.layouts[steps.layouts].inputs);
  if (!step.shared_with.empty()) return out + ", the result of " + step.shared_with;
  if (step.uses > 1) out += ", one collective for " + std::to_string(step.uses) + " siblings";
  return out;
}

std::string OfOutput(const ModuleStep& step, const ModuleSteps& steps, const CompiledPlan& plan) {
  return Redistributed(step, plan.layouts[steps.layouts].outputs);
}

std::string InputCollectives(const ModuleStep& step, const ModuleSteps& steps, const CompiledPlan& plan) {
  if (!step.shared_with.empty()) return "";
  const ModuleLayouts& layouts = plan.layouts[steps.layouts];
  return CollectivesText(*layouts.inputs[static_cast<size_t>(step.position)], plan.mesh,
                         layouts.HasGradient(step.position));
}

std::string OutputCollectives(const ModuleStep& step, const ModuleSteps& steps, const CompiledPlan& plan) {
  // The change on the axis of this step alone.
  const Redistribution& move = *plan.layouts[steps.layouts].outputs[static_cast<size_t>(step.position)];
  Redistribution on_axis;
  on_axis.from[step.axis] = move.from[step.axis];
  on_axis.to[step.axis] = move.to[step.axis];
  return CollectivesText(on_axis, plan.mesh);
}

std::string CastTo(const ModuleStep& step, const ModuleSteps& /*steps*/, const CompiledPlan& /*plan*/) {
  return ": " + (step.dtype.empty() ? "as the first argument" : step.dtype);
}

std::string KeptBy(const ModuleStep& step, const ModuleSteps& /*steps*/, const CompiledPlan& plan) {
  const Recomputed& section = plan.plan->recompute[static_cast<size_t>(step.position)];
  return section.selective() ? ": by " + ToText(section) : "";
}

std::string NumbersOf(const ModuleStep& step, const ModuleSteps& /*steps*/, const CompiledPlan& /*plan*/) {
  switch (step.stream) {
    case DrawFrom::kOwn: return ": numbers of this rank";
    case DrawFrom::kCommon: return ": numbers common to tp";
    case DrawFrom::kAsBefore: return ": as before";
  }
  return "";
}

std::string Added(const ModuleStep& step, const ModuleSteps& steps, const CompiledPlan& plan) {
  return ": " + Join(plan.layouts[steps.layouts].after, ", ") + (step.in_forward ? " (within the forward)" : "");
}

std::string Routed(const ModuleStep& /*step*/, const ModuleSteps& steps, const CompiledPlan& plan) {
  const ModuleLayouts& layouts = plan.layouts[steps.layouts];
  return ": " + ToText(*layouts.route) + " of " + std::to_string(layouts.experts);
}

std::string Sent(const ModuleStep& /*step*/, const ModuleSteps& steps, const CompiledPlan& plan) {
  const ModuleLayouts& layouts = plan.layouts[steps.layouts];
  return ": " + ToText(*layouts.exchange) + " of " + std::to_string(layouts.experts) + " on ep";
}

// The numbers of the tokens and the tokens; the tokens' gradients come back.
std::string SendCollectives(const ModuleStep& /*step*/, const ModuleSteps& /*steps*/, const CompiledPlan& /*plan*/) {
  return "2 all_to_all forward, all_to_all backward";
}

std::string ReturnCollectives(const ModuleStep& /*step*/, const ModuleSteps& /*steps*/, const CompiledPlan& /*plan*/) {
  return "all_to_all forward, all_to_all backward";
}

std::string OnRing(const ModuleStep& /*step*/, const ModuleSteps& steps, const CompiledPlan& plan) {
  const ModuleLayouts& layouts = plan.layouts[steps.layouts];
  const bool zigzag = layouts.inputs.front()->to[MeshAxis::kCp].zigzag;
  const int64_t heads = plan.mesh.cp_heads();
  std::string out = ": " + ToText(*layouts.ring) + " over cp" + (zigzag ? ", zigzag" : "");
  if (heads > 1) {
    out += ", between " + std::to_string(plan.mesh.size(MeshAxis::kCp) / heads) + " groups of " +
           std::to_string(heads) + " ranks, which exchange heads";
  }
  return out;
}

std::string RingCollectives(const ModuleStep& /*step*/, const ModuleSteps& /*steps*/, const CompiledPlan& plan) {
  return RingCollectivesText(plan.mesh);
}

std::string WhenKept(const ModuleStep& step, const ModuleSteps& /*steps*/, const CompiledPlan& /*plan*/) {
  return step.keeps ? ": when its backward ends" : "";
}

std::string GatherCollectives(const ModuleStep& /*step*/, const ModuleSteps& /*steps*/, const CompiledPlan& plan) {
  return plan.unit_settings.ranks > 1 ? "all_gather forward, reduce_scatter backward" : "";
}

std::string ReshardCollectives(const ModuleStep& step, const ModuleSteps& /*steps*/, const CompiledPlan& plan) {
  return plan.unit_settings.ranks > 1 && !step.keeps ? "all_gather backward" : "";
}

using K = StepKind;

// clang-format off
constexpr StepKindInfo kStepKinds[] = {
  // kind                  name                   begins ends              repeats live  rest      collectives
  {K::kRingAttention,      "ring_attention",      true,  {},                false, false, OnRing,    RingCollectives},
  {K::kBeginStep,          "begin_step",          true,  {},                false, false, nullptr,   nullptr},
  {K::kGatherUnit,         "gather_unit",         true,  {},                false, false, nullptr,   GatherCollectives},
  {K::kCastArguments,      "cast_arguments",      true,  {},                false, false, CastTo,    nullptr},
  {K::kRecompute,          "recompute",           true,  {},                true,  false, KeptBy,    nullptr},
  {K::kKeepResults,        "keep_results",        true,  {},                true,  false, nullptr,   nullptr},
  {K::kOutermostCall,      "outermost_call",      true,  {},                true,  true,  nullptr,   nullptr},
  {K::kDrawInside,         "draw_inside",         true,  {},                true,  true,  NumbersOf, nullptr},
  {K::kRedistributeInput,  "redistribute_input",  true,  {},                true,  false, OfInput,   InputCollectives},
  {K::kRouteInputs,        "route_inputs",        true,  {},                true,  false, Routed,    nullptr},
  {K::kSendTokens,         "send_tokens",         true,  {},                true,  false, Sent,      SendCollectives},
  {K::kShareResults,       "share_results",       true,  {},                true,  true,  nullptr,   nullptr},
  {K::kDrawAfter,          "draw_after",          false, K::kDrawInside,    true,  true,  NumbersOf, nullptr},
  {K::kNeedGradient,       "need_gradient",       false, {},                true,  true,  nullptr,   nullptr},
  {K::kReturnTokens,       "return_tokens",       false, K::kSendTokens,    true,  false, nullptr,   ReturnCollectives},
  {K::kRedistributeOutput, "redistribute_output", false, {},                true,  false, OfOutput,  OutputCollectives},
  {K::kAddParameters,      "add_parameters",      false, {},                true,  false, Added,     nullptr},
  {K::kRouteOutputs,       "route_outputs",       false, {},                true,  false, Routed,    nullptr},
  {K::kFinishCall,         "finish_call",         false, K::kOutermostCall, true,  true,  nullptr,   nullptr},
  {K::kCastResults,        "cast_results",        false, K::kCastArguments, false, false, CastTo,    nullptr},
  {K::kReshardUnit,        "reshard_unit",        false, K::kGatherUnit,    false, false, WhenKept, ReshardCollectives},
  {K::kEndStep,            "end_step",            false, K::kBeginStep,     false, false, nullptr,   nullptr},
};
// clang-format on

constexpr bool IsInOrder() {
  for (size_t i = 0; i < std::size(kStepKinds); ++i) {
    if (static_cast<size_t>(kStepKinds[i].kind) != i) return false;
  }
  return std::size(kStepKinds) == static_cast<size_t>(StepKind::kEndStep) + 1;
}
static_assert(IsInOrder(), "a row for each kind, in the order of StepKind");

}  // namespace

std::span<const StepKindInfo> StepKinds() { return kStepKinds; }

const StepKindInfo& InfoOf(StepKind kind) { return kStepKinds[static_cast<size_t>(kind)]; }

std::string ToText(const ModuleStep& step, const ModuleSteps& steps, const CompiledPlan& plan) {
  const StepKindInfo& info = InfoOf(step.kind);
  std::string name = info.name;
  std::ranges::replace(name, '_', ' ');
  return info.rest == nullptr ? name : name + info.rest(step, steps, plan);
}

}  // namespace moonshard
