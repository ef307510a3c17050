#include "engine/plan/compile/compiled_plan.h"

#include <algorithm>
#include <numeric>

#include "engine/core/base/hash.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

bool Redistributions(const std::vector<std::optional<Redistribution>>& redistributions) {
  return std::ranges::any_of(redistributions, [](const auto& move) { return move && move->from != move->to; });
}

void AddRedistributions(std::string& out, const char* label,
                        const std::vector<std::optional<Redistribution>>& redistributions) {
  if (redistributions.empty()) return;
  out += std::string(" ") + label + "=[";
  for (size_t i = 0; i < redistributions.size(); ++i) {
    if (i > 0) out += ", ";
    out += redistributions[i] ? redistributions[i]->from.ToText() + " -> " + redistributions[i]->to.ToText() : "-";
  }
  out += "]";
}

std::string TextOf(const ShardedUnit& unit, const ModuleTree& tree) {
  std::string out = "unit " + (unit.path.empty() ? "(root)" : unit.path) + (unit.reshard ? " reshard" : "");
  if (unit.reshard_ranks > 0) out += " over " + std::to_string(unit.reshard_ranks);
  for (ParamRef ref : unit.params) out += " " + tree.PathOf(ref);
  return out + "\n";
}

std::string TextOfSections(const CompiledPlan& plan) {
  std::string out;
  for (const ShardedUnit& unit : plan.units) out += TextOf(unit, *plan.tree);
  for (size_t i = 0; i < plan.recomputed.size(); ++i) {
    const Recomputed& section = plan.plan->recompute[static_cast<size_t>(plan.recompute_section[i])];
    out += "recompute " + plan.recomputed[i] + (section.selective() ? " by " + ToText(section) : "") + "\n";
  }
  for (const std::string& path : plan.kept_results) out += "keep " + path + "\n";
  if (plan.plan->precision) out += ToText(*plan.plan->precision) + "\n";
  for (const ModuleDType& kept : plan.kept_dtypes) out += "keep_dtype " + kept.path + " " + kept.dtype + "\n";
  return out;
}

}  // namespace

bool ModuleSteps::needs_calls() const {
  return Redistributions(inputs) || Redistributions(outputs) || !after.empty() || lookup != Lookup::kPlain ||
         route.has_value();
}

std::string ToText(const ModuleSteps& steps, const ModuleTree::Signature& signature) {
  std::string out = steps.style.empty() ? "-" : steps.style;
  for (size_t i = 0; i < signature.size(); ++i) out += " " + signature[i].name + "=" + steps.params[i].ToText();
  AddRedistributions(out, "inputs", steps.inputs);
  AddRedistributions(out, "outputs", steps.outputs);
  if (!steps.after.empty()) out += " after=[" + Join(steps.after, ", ") + "]";
  if (steps.lookup == Lookup::kMasked) out += " lookup=masked";
  if (steps.route) out += " route=" + ToText(*steps.route) + " of " + std::to_string(steps.experts);
  return out;
}

std::string CompiledPlan::CanonicalText() const {
  std::vector<std::string> texts;
  texts.reserve(steps.size());
  for (const ModuleSteps& s : steps) texts.push_back(moonshard::ToText(s, tree->signatures()[s.signature]));
  std::vector<uint32_t> order(tree->modules().size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, {}, [&](uint32_t m) -> const std::string& { return tree->modules()[m].path; });
  std::string out = "mesh " + mesh.ToString() + "\n";
  for (const Rule& rule : plan->rules) {
    out += "rule " + rule.pattern + " " + (rule.parameter ? rule.parameter->ToText() : moonshard::ToText(rule.style)) +
           "\n";
  }
  for (uint32_t m : order) {
    const ModuleSteps& s = StepsOf(m);
    // What neither owns parameters nor communicates is the same with or without being listed; a tree from headers does
    // not know it.
    if (tree->signatures()[s.signature].empty() && !s.needs_calls()) continue;
    out += tree->modules()[m].path + " " + texts[steps_of[m]] + "\n";
  }
  if (plan->data_parallel) out += moonshard::ToText(*plan->data_parallel) + "\n";
  out += TextOfSections(*this);
  return out;
}

std::string CompiledPlan::Hash() const { return LongHashOf(CanonicalText()); }

std::string CompiledPlan::ToText() const {
  std::string out;
  for (size_t m = 0; m < tree->modules().size(); ++m) {
    const ModuleSteps& s = StepsOf(m);
    const Module& module = tree->modules()[m];
    if (s.style.empty() && tree->parameters(module).empty()) continue;
    out += (module.path.empty() ? "(root)" : module.path) + " " + moonshard::ToText(s, tree->parameters(module)) + "\n";
  }
  out += TextOfSections(*this);
  return out;
}

}  // namespace moonshard
