// The table of step kinds: a row has all that is known of a kind without a module. Its order is that of StepKind, which
// is the order in which steps run.
#include <algorithm>
#include <array>
#include <string>

#include "engine/core/base/text.h"
#include "engine/plan/compile/compiled_plan.h"
#include "engine/plan/compile/cost.h"
#include "engine/plan/compile/program.h"

namespace moonshard {
namespace {

using Redistributions = std::vector<std::optional<Redistribution>>;

std::string Redistributed(const ProgramStep& step, const Redistributions& of) {
  const Redistribution& move = *of[static_cast<size_t>(step.position)];
  return " " + std::to_string(step.position) + ": " + move.from.ToText() + " -> " + move.to.ToText() + " on " +
         ToString(step.axis);
}

std::string OfInput(const ProgramStep& step, const ModuleProgram& program, const CompiledPlan& plan) {
  std::string out = Redistributed(step, plan.steps[program.steps].inputs);
  if (!step.shared_with.empty()) return out + ", the result of " + step.shared_with;
  if (step.uses > 1) out += ", one collective for " + std::to_string(step.uses) + " siblings";
  return out;
}

std::string OfOutput(const ProgramStep& step, const ModuleProgram& program, const CompiledPlan& plan) {
  return Redistributed(step, plan.steps[program.steps].outputs);
}

std::string InputCollectives(const ProgramStep& step, const ModuleProgram& program, const CompiledPlan& plan) {
  if (!step.shared_with.empty()) return "";
  return CollectivesText(*plan.steps[program.steps].inputs[static_cast<size_t>(step.position)], plan.mesh);
}

std::string OutputCollectives(const ProgramStep& step, const ModuleProgram& program, const CompiledPlan& plan) {
  return CollectivesText(*plan.steps[program.steps].outputs[static_cast<size_t>(step.position)], plan.mesh);
}

std::string CastTo(const ProgramStep& step, const ModuleProgram& /*program*/, const CompiledPlan& /*plan*/) {
  return ": " + (step.dtype.empty() ? "as the first argument" : step.dtype);
}

std::string KeptBy(const ProgramStep& step, const ModuleProgram& /*program*/, const CompiledPlan& plan) {
  const Recomputed& section = plan.plan->recompute[static_cast<size_t>(step.position)];
  return section.selective() ? ": by " + ToText(section) : "";
}

std::string NumbersOf(const ProgramStep& step, const ModuleProgram& /*program*/, const CompiledPlan& /*plan*/) {
  switch (step.stream) {
    case DrawFrom::kOwn: return ": numbers of this rank";
    case DrawFrom::kCommon: return ": numbers common to tp";
    case DrawFrom::kAsBefore: return ": as before";
  }
  return "";
}

std::string Added(const ProgramStep& /*step*/, const ModuleProgram& program, const CompiledPlan& plan) {
  return ": " + Join(plan.steps[program.steps].after, ", ");
}

std::string Routed(const ProgramStep& /*step*/, const ModuleProgram& program, const CompiledPlan& plan) {
  const ModuleSteps& steps = plan.steps[program.steps];
  return ": " + ToText(*steps.route) + " of " + std::to_string(steps.experts);
}

std::string WhenKept(const ProgramStep& step, const ModuleProgram& /*program*/, const CompiledPlan& /*plan*/) {
  return step.keeps ? ": when its backward ends" : "";
}

std::string GatherCollectives(const ProgramStep& /*step*/, const ModuleProgram& /*program*/, const CompiledPlan& plan) {
  return plan.unit_settings.ranks > 1 ? "all_gather forward, reduce_scatter backward" : "";
}

std::string ReshardCollectives(const ProgramStep& step, const ModuleProgram& /*program*/, const CompiledPlan& plan) {
  return plan.unit_settings.ranks > 1 && !step.keeps ? "all_gather backward" : "";
}

// clang-format off
constexpr StepKindInfo kStepKinds[] = {
  // kind                         name                   begins repeats of_live_tree  rest       collectives
  {StepKind::kBeginStep,          "begin_step",          true,  false,  false,        nullptr,   nullptr},
  {StepKind::kGatherUnit,         "gather_unit",         true,  false,  false,        nullptr,   GatherCollectives},
  {StepKind::kCastArguments,      "cast_arguments",      true,  false,  false,        CastTo,    nullptr},
  {StepKind::kRecompute,          "recompute",           true,  true,   false,        KeptBy,    nullptr},
  {StepKind::kKeepResults,        "keep_results",        true,  true,   false,        nullptr,   nullptr},
  {StepKind::kOutermostCall,      "outermost_call",      true,  true,   true,         nullptr,   nullptr},
  {StepKind::kDrawInside,         "draw_inside",         true,  true,   true,         NumbersOf, nullptr},
  {StepKind::kRedistributeInput,  "redistribute_input",  true,  true,   false,        OfInput,   InputCollectives},
  {StepKind::kRouteInputs,        "route_inputs",        true,  true,   false,        Routed,    nullptr},
  {StepKind::kShareResults,       "share_results",       true,  true,   true,         nullptr,   nullptr},
  {StepKind::kDrawAfter,          "draw_after",          false, true,   true,         NumbersOf, nullptr},
  {StepKind::kRedistributeOutput, "redistribute_output", false, true,   false,        OfOutput,  OutputCollectives},
  {StepKind::kAddParameters,      "add_parameters",      false, true,   false,        Added,     nullptr},
  {StepKind::kRouteOutputs,       "route_outputs",       false, true,   false,        Routed,    nullptr},
  {StepKind::kFinishCall,         "finish_call",         false, true,   true,         nullptr,   nullptr},
  {StepKind::kCastResults,        "cast_results",        false, false,  false,        CastTo,    nullptr},
  {StepKind::kReshardUnit,        "reshard_unit",        false, false,  false,        WhenKept,  ReshardCollectives},
  {StepKind::kEndStep,            "end_step",            false, false,  false,        nullptr,   nullptr},
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

std::string ToText(const ProgramStep& step, const ModuleProgram& program, const CompiledPlan& plan) {
  const StepKindInfo& info = InfoOf(step.kind);
  std::string name = info.name;
  std::ranges::replace(name, '_', ' ');
  return info.rest == nullptr ? name : name + info.rest(step, program, plan);
}

}  // namespace moonshard
