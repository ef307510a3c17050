// The layouts of a plan as text and as JSON. Modules whose paths differ in numbers only and whose steps are the same
// are one entry, in the order in which the first of them is in the tree.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/compile/gradient_sums.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/explain/explain.h"
#include "engine/plan/explain/texts.h"

namespace moonshard {
namespace {

struct ProgramEntry {
  const ModuleSteps* steps = nullptr;
  std::vector<std::string> paths;
};

std::vector<ProgramEntry> EntriesOf(const CompiledPlan& plan) {
  std::map<std::pair<uint32_t, uint32_t>, size_t> numbers;
  std::vector<ProgramEntry> out;
  for (size_t m = 0; m < plan.tree->modules().size(); ++m) {
    const Module& module = plan.tree->modules()[m];
    if (plan.StepsOf(m).empty()) continue;
    const auto [entry, fresh] = numbers.try_emplace({module.path_class, plan.steps_of[m]}, out.size());
    if (fresh) out.push_back({&plan.StepsOf(m), {}});
    out[entry->second].paths.push_back(module.path);
  }
  return out;
}

struct SumEntry {
  PlannedGroup group;
  bool in_buckets = false;
  std::vector<std::string> params;  // folded
};

std::vector<SumEntry> SumsOf(const CompiledPlan& plan) {
  const std::set<ParamRef> repeats = TiedCopies(*plan.tree);
  std::map<std::tuple<PlannedGroup, uint32_t, uint32_t>, size_t> numbers;
  std::vector<SumEntry> found;
  for (uint32_t m = 0; m < plan.tree->modules().size(); ++m) {
    for (const PlannedSum& sum : plan.StepsOf(m).sums) {
      if (repeats.contains({m, sum.param})) continue;
      const auto [entry, fresh] =
          numbers.try_emplace({sum.group, plan.tree->modules()[m].path_class, sum.param}, found.size());
      const bool in_buckets = SpansData(sum.group) && IsInBucket(plan, plan.LayoutsOf(m).params[sum.param]);
      if (fresh) found.push_back({sum.group, in_buckets, {}});
      found[entry->second].params.push_back(plan.tree->PathOf({m, sum.param}));
    }
  }
  std::vector<SumEntry> out;
  for (const PlannedGroup& group : plan.groups) {
    for (const bool in_buckets : {true, false}) {
      SumEntry entry = {group, in_buckets, {}};
      for (const SumEntry& of : found) {
        if (of.group == group && of.in_buckets == in_buckets) entry.params.push_back(FoldPaths(of.params));
      }
      if (!entry.params.empty()) out.push_back(std::move(entry));
    }
  }
  return out;
}

// Duties of a call that no other encloses: every module whose calls are intercepted may be called so.
bool IsOfOutermostCall(const ModuleStep& step) {
  return step.kind == StepKind::kOutermostCall || step.kind == StepKind::kFinishCall;
}

std::string CollectivesOf(const ModuleStep& step, const ModuleSteps& steps, const CompiledPlan& plan) {
  const StepKindInfo& info = InfoOf(step.kind);
  return info.collectives == nullptr ? "" : info.collectives(step, steps, plan);
}

void AddSteps(std::string& out, const char* side, const std::vector<ModuleStep>& list, const ProgramEntry& entry,
              const CompiledPlan& plan) {
  const bool root = entry.paths.front().empty();
  bool first = true;
  for (const ModuleStep& step : list) {
    if (IsOfOutermostCall(step) && !root) continue;
    const std::string collectives = CollectivesOf(step, *entry.steps, plan);
    out += std::string(first ? "    " : "          ") + (first ? side : "") + Visible(ToText(step, *entry.steps, plan));
    out += (collectives.empty() ? "" : "  (" + collectives + ")") + "\n";
    first = false;
  }
}

JsonValue StepsToJson(const std::vector<ModuleStep>& list, const ModuleSteps& steps, const CompiledPlan& plan) {
  JsonValue::Array out;
  for (const ModuleStep& step : list) {
    JsonValue::Object object = {{"step", InfoOf(step.kind).name}, {"text", ToText(step, steps, plan)}};
    const bool moves = step.kind == StepKind::kRedistributeInput || step.kind == StepKind::kRedistributeOutput;
    if (moves) {
      object["position"] = static_cast<int64_t>(step.position);
      object["axis"] = ToString(step.axis);
    }
    if (step.uses > 1) object["uses"] = static_cast<int64_t>(step.uses);
    if (!step.shared_with.empty()) object["shared_with"] = step.shared_with;
    if (!step.dtype.empty()) object["dtype"] = step.dtype;
    out.emplace_back(std::move(object));
  }
  return out;
}

}  // namespace

std::string ProgramText(const CompiledPlan& plan) {
  std::string out = "steps around the calls of modules, in the order in which they run";
  const std::string compared = plan.context_parallel ? "cp and tp" : "tp";
  out += plan.sums_gradients
             ? "; a call that is not inside another call also compares its inputs between the ranks of " + compared +
                   " and runs the gradient sums:\n"
             : ":\n";
  for (const ProgramEntry& entry : EntriesOf(plan)) {
    std::string steps;
    AddSteps(steps, "enter ", entry.steps->enter, entry, plan);
    AddSteps(steps, "leave ", entry.steps->leave, entry, plan);
    if (steps.empty()) continue;
    const std::string path = Visible(FoldPaths(entry.paths));
    out += "  " + (path.empty() ? "(root)" : path) + "\n" + steps;
  }
  std::vector<std::string> groups;
  for (const PlannedGroup& group : plan.groups) groups.push_back(ToText(group, plan.mesh));
  out += "  groups: " + Join(groups, ", ") + "\n";
  const bool early = std::ranges::any_of(plan.buckets, [](const GradientBucket& bucket) { return !bucket.at_end; });
  for (const SumEntry& sum : SumsOf(plan)) {
    out += "  gradients summed over " + ToText(sum.group, plan.mesh) +
           (sum.in_buckets ? ", in " + std::to_string(plan.buckets.size()) + " all_reduce " +
                                 (early ? "during the backward" : "when the backward ends")
                           : std::string(", in one all_reduce per dtype when the backward ends")) +
           ": " + Visible(Join(sum.params, ", ")) + "\n";
  }
  return out;
}

JsonValue StepsAsJson(const CompiledPlan& plan) {
  JsonValue::Array order;
  for (const StepKindInfo& kind : StepKinds()) order.emplace_back(kind.name);
  JsonValue::Array modules;
  for (const ProgramEntry& entry : EntriesOf(plan)) {
    modules.emplace_back(JsonValue::Object{{"modules", FoldPaths(entry.paths)},
                                           {"count", static_cast<int64_t>(entry.paths.size())},
                                           {"enter", StepsToJson(entry.steps->enter, *entry.steps, plan)},
                                           {"leave", StepsToJson(entry.steps->leave, *entry.steps, plan)}});
  }
  const auto to_json = [](const PlannedGroup& group) {
    return JsonValue::Object{{"axis", ToString(group.axes)}, {"ranks", group.ranks}};
  };
  JsonValue::Array groups;
  for (const PlannedGroup& group : plan.groups) groups.emplace_back(to_json(group));
  JsonValue::Array sums;
  for (const SumEntry& sum : SumsOf(plan)) {
    JsonValue::Array params;
    for (const std::string& param : sum.params) params.emplace_back(param);
    JsonValue::Object object = to_json(sum.group);
    object["params"] = std::move(params);
    sums.emplace_back(std::move(object));
  }
  return JsonValue::Object{{"order", std::move(order)},
                           {"modules", std::move(modules)},
                           {"groups", std::move(groups)},
                           {"sums", std::move(sums)},
                           {"buckets", static_cast<int64_t>(plan.buckets.size())},
                           {"gradient_scale", plan.gradient_scale}};
}

}  // namespace moonshard
