#include "engine/plan/compile/compiled_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "engine/core/base/hash.h"
#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"

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

std::string TextOf(const KeptOperators& kept) {
  return std::string(" keeps") + (kept.attention ? " attention" : "") +
         (kept.matmuls == Recomputed::Matmuls::kNone ? ""
                                                     : " matmuls " + std::to_string(static_cast<int>(kept.matmuls)));
}

// Without what follows from modules that own no parameter, which a tree from checkpoint headers does not know.
std::string TextOf(const ModuleSteps& steps, const CompiledPlan& plan) {
  std::string out;
  for (const auto* list : {&steps.enter, &steps.leave}) {
    for (const ModuleStep& step : *list) {
      if (InfoOf(step.kind).of_live_tree) continue;
      // Which sibling comes first is the tree's order, which headers have another one of.
      ModuleStep alone = step;
      alone.shared_with.clear();
      out += "; " + ToText(alone, steps, plan);
      if (step.kept) out += TextOf(*step.kept);
    }
  }
  if (!steps.dtype.empty()) out += "; in " + steps.dtype;
  for (const PlannedSum& sum : steps.sums) {
    out += "; sum " + std::to_string(sum.param) + " over " + ToText(sum.group, plan.mesh);
    if (sum.dim >= 0) out += " along " + std::to_string(sum.dim);
  }
  return out;
}

// What differs from the defaults: the text of a plan without such a setting has nothing of it.
std::string TextOf(const UnitSettings& settings) {
  const UnitSettings usual;
  std::string out;
  if (settings.ranks != usual.ranks) out += " over " + std::to_string(settings.ranks);
  if (settings.axes != usual.axes) out += " of " + ToString(settings.axes);
  if (settings.prefetch_forward > 0) out += " ahead " + std::to_string(settings.prefetch_forward);
  if (settings.prefetch_backward > 0) out += " behind " + std::to_string(settings.prefetch_backward);
  if (settings.keep_unsynced) out += " keep_unsynced";
  if (settings.accumulate_shards) out += " accumulate_shards";
  if (settings.offload) out += " offload";
  if (!settings.reduce_dtype.empty()) out += " reduce " + settings.reduce_dtype;
  return out.empty() ? "" : "units" + out + "\n";
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
  for (const auto& [path, section] : plan.adapted) {
    const Adapter& adapter = plan.plan->adapters[static_cast<size_t>(section)];
    out += "lora " + adapter.name + " " + path + " " + SettingsText(adapter) + "\n";
  }
  const std::string active = plan.active_adapter();
  const auto other = [&](const Adapter& adapter) { return adapter.name != active; };
  if (std::ranges::any_of(plan.plan->adapters, other)) out += "active " + active + "\n";
  for (const ModuleDType& kept : plan.kept_dtypes) out += "keep_dtype " + kept.path + " " + kept.dtype + "\n";
  return out;
}

}  // namespace

bool ModuleLayouts::needs_calls() const {
  return Redistributions(inputs) || Redistributions(outputs) || !after.empty() || lookup != Lookup::kPlain ||
         route.has_value() || exchange.has_value() || ring.has_value();
}

bool CompiledPlan::exchanges_tokens() const {
  return mesh.size(MeshAxis::kEp) > 1 &&
         std::ranges::any_of(layouts_of, [this](uint32_t index) { return layouts[index].exchange.has_value(); });
}

bool CompiledPlan::attends_on_ring() const {
  return mesh.size(MeshAxis::kCp) > 1 &&
         std::ranges::any_of(layouts_of, [this](uint32_t index) { return layouts[index].ring.has_value(); });
}

Layout CompiledPlan::own_tokens() const {
  const auto of_tokens = [](const Layout& on_cp) { return on_cp.zigzag && ShardsSequence(on_cp); };
  const auto zigzag = [&](const std::optional<Redistribution>& move) {
    return move && (of_tokens(move->from[MeshAxis::kCp]) || of_tokens(move->to[MeshAxis::kCp]));
  };
  const bool any = std::ranges::any_of(layouts_of, [&](uint32_t index) {
    return std::ranges::any_of(layouts[index].inputs, zigzag) || std::ranges::any_of(layouts[index].outputs, zigzag);
  });
  return any ? Layout::Zigzag(1, mesh.cp_heads()) : Layout::Shard(1);
}

bool CompiledPlan::Trains(const ModuleLayouts& of, const Parameter& parameter) const {
  if (parameter.is_buffer) return false;
  return plan->adapters.empty() || (of.factors && parameter.name == active_adapter());
}

std::string ToText(const ModuleLayouts& layouts, const ModuleTree::Signature& signature) {
  std::string out = layouts.style.empty() ? "-" : layouts.style;
  for (size_t i = 0; i < signature.size(); ++i) out += " " + signature[i].name + "=" + layouts.params[i].ToText();
  AddRedistributions(out, "inputs", layouts.inputs);
  AddRedistributions(out, "outputs", layouts.outputs);
  if (!layouts.after.empty()) out += " after=[" + Join(layouts.after, ", ") + "]";
  if (layouts.lookup == Lookup::kMasked) out += " lookup=masked";
  if (layouts.route) out += " route=" + ToText(*layouts.route) + " of " + std::to_string(layouts.experts);
  if (layouts.exchange) out += " exchange=" + ToText(*layouts.exchange) + " of " + std::to_string(layouts.experts);
  if (layouts.ring) out += " ring=[" + ToText(*layouts.ring) + "]";
  return out;
}

// The text that ranks compare before their first collective, and of which the hash identifies a plan in checkpoints. It
// must be equal for equal work, whatever the tree was read from: modules are sorted by path, and what only a live tree
// has (modules without parameters that do not communicate, and the layouts that follow from them) is left out. It
// contains no line numbers or file names, which may differ between ranks.
std::string CompiledPlan::CanonicalText() const {
  std::vector<std::string> texts;
  texts.reserve(layouts.size());
  for (const ModuleLayouts& s : layouts) texts.push_back(moonshard::ToText(s, tree->signatures()[s.signature]));
  std::vector<std::string> program_texts;
  program_texts.reserve(steps.size());
  for (const ModuleSteps& steps : steps) program_texts.push_back(TextOf(steps, *this));
  std::vector<uint32_t> order(tree->modules().size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, {}, [&](uint32_t m) -> const std::string& { return tree->modules()[m].path; });
  std::string out = "mesh " + mesh.ToString() + "\n";
  for (const Rule& rule : plan->rules) {
    out += "rule " + rule.pattern + " " + (rule.parameter ? rule.parameter->ToText() : moonshard::ToText(rule.style)) +
           "\n";
  }
  for (uint32_t m : order) {
    const ModuleLayouts& s = LayoutsOf(m);
    // What neither owns parameters nor communicates is the same with or without being listed; a tree from headers does
    // not know it.
    if (tree->signatures()[s.signature].empty() && !s.needs_calls()) continue;
    out += tree->modules()[m].path + " " + texts[layouts_of[m]] + program_texts[steps_of[m]] + "\n";
  }
  out += "groups";
  for (const PlannedGroup& group : groups) out += " " + std::to_string(group.ranks) + moonshard::ToText(group, mesh);
  out += " buckets " + std::to_string(buckets.size()) + "\n";
  out += TextOf(unit_settings);
  if (gradient_scale != 1) out += "scale " + WriteJson(gradient_scale, 0) + "\n";
  if (plan->data_parallel) out += moonshard::ToText(*plan->data_parallel) + "\n";
  out += TextOfSections(*this);
  return out;
}

std::string CompiledPlan::Hash() const { return LongHashOf(CanonicalText()); }

std::string CompiledPlan::ToText() const {
  std::string out;
  for (size_t m = 0; m < tree->modules().size(); ++m) {
    const ModuleLayouts& s = LayoutsOf(m);
    const Module& module = tree->modules()[m];
    if (s.style.empty() && tree->parameters(module).empty()) continue;
    out += (module.path.empty() ? "(root)" : Visible(module.path)) + " " +
           Visible(moonshard::ToText(s, tree->parameters(module))) + "\n";
  }
  out += TextOfSections(*this);
  return out;
}

const SourceSpan& SourceOf(const CompiledPlan& plan, const ModuleLayouts& layouts) {
  static const SourceSpan kNowhere;
  if (layouts.is_fallback) return plan.plan->fallback_source;
  return layouts.rule < 0 ? kNowhere : plan.plan->rules[static_cast<size_t>(layouts.rule)].source;
}

const SourceSpan& SourceOf(const CompiledPlan& plan, const ModuleLayouts& layouts, size_t param) {
  const int32_t rule = param < layouts.param_rules.size() ? layouts.param_rules[param] : -1;
  return rule < 0 ? SourceOf(plan, layouts) : plan.plan->rules[static_cast<size_t>(rule)].source;
}

bool ShardsFeatures(const Layout& layout) { return layout.is_shard() && (layout.dim == -1 || layout.dim == 2); }

bool ShardsSequence(const Layout& layout) { return layout.is_shard() && (layout.dim == 1 || layout.dim == -2); }

bool DeclaresSequenceShards(const ModuleLayouts& layouts) {
  for (const auto* redistributions : {&layouts.inputs, &layouts.outputs}) {
    for (const std::optional<Redistribution>& move : *redistributions) {
      if (move && (ShardsSequence(move->from[MeshAxis::kTp]) || ShardsSequence(move->to[MeshAxis::kTp]))) return true;
    }
  }
  return false;
}

}  // namespace moonshard
