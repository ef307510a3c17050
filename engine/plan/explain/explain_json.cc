#include <algorithm>
#include <map>

#include "engine/core/findings/forms.h"
#include "engine/layout/data_flow.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/unit_memory.h"
#include "engine/plan/explain/explain.h"

namespace moonshard {
namespace {

JsonValue::Array ToJson(const std::vector<int64_t>& shape) { return {shape.begin(), shape.end()}; }

// A string where only tp speaks, else an object by axis.
JsonValue ToJson(const Placement& placement) {
  if (placement.only_tp()) return placement[MeshAxis::kTp].ToString();
  JsonValue::Object out;
  for (MeshAxis axis : kMeshAxes) {
    if (placement[axis] != Layout::Replicate()) out[ToString(axis)] = placement[axis].ToString();
  }
  return out;
}

// How many heads a dim is made of; for a fused dim, those of each part.
JsonValue HeadsOf(const Placement& placement) {
  for (const Layout& layout : placement.by_axis) {
    if (layout.heads > 0) return layout.heads;
    if (std::ranges::any_of(layout.parts, [](const Layout::Part& part) { return part.heads > 0; })) {
      JsonValue::Array heads;
      for (const Layout::Part& part : layout.parts) heads.emplace_back(part.heads);
      return heads;
    }
  }
  return nullptr;
}

JsonValue ToJson(const std::vector<std::optional<Redistribution>>& redistributions) {
  JsonValue::Array out;
  for (const std::optional<Redistribution>& redistribution : redistributions) {
    if (redistribution) {
      out.emplace_back(JsonValue::Array{ToJson(redistribution->from), ToJson(redistribution->to)});
    } else {
      out.emplace_back(nullptr);
    }
  }
  return out;
}

JsonValue ModuleToJson(const CompiledPlan& plan, size_t index, int64_t rank) {
  const ModuleLayouts& layouts = plan.LayoutsOf(index);
  const ModuleTree::Signature& signature = plan.tree->parameters(plan.tree->modules()[index]);
  JsonValue::Object params;
  for (size_t i = 0; i < signature.size(); ++i) {
    const Parameter& parameter = signature[i];
    JsonValue::Object entry = {
        {"layout", ToJson(layouts.params[i])},
        {"shape", ToJson(parameter.shape)},
        {"local_shape", ToJson(LocalShape(parameter.shape, layouts.params[i], plan.mesh, rank))},
        {"dtype", ToString(parameter.dtype)},
    };
    JsonValue heads = HeadsOf(layouts.params[i]);
    if (!heads.is_null()) entry["heads"] = std::move(heads);
    for (const Layout& layout : layouts.params[i].by_axis) {
      if (layout.owner >= 0) entry["owner"] = layout.owner;
    }
    if (parameter.is_buffer) entry["buffer"] = true;
    params[parameter.name] = std::move(entry);
  }
  JsonValue::Object out = {
      {"rule", layouts.rule < 0 ? JsonValue(nullptr) : JsonValue(layouts.rule)},
      {"style", layouts.style.empty() ? JsonValue(nullptr) : JsonValue(layouts.style)},
      {"input", ToJson(layouts.inputs)},
      {"output", ToJson(layouts.outputs)},
      {"params", std::move(params)},
  };
  return out;
}

// One entry for each `lora` section that applies to modules, in the order of the plan.
JsonValue::Array AdaptersOf(const CompiledPlan& plan) {
  std::map<int32_t, JsonValue::Array> modules;  // by section
  for (const auto& [path, section] : plan.adapted) modules[section].emplace_back(path);
  JsonValue::Array out;
  for (auto& [section, paths] : modules) {
    const Adapter& adapter = plan.plan->adapters[static_cast<size_t>(section)];
    JsonValue::Object settings = {{"rank", adapter.rank},
                                  {"alpha", adapter.alpha},
                                  {"dropout", adapter.dropout},
                                  {"rslora", adapter.rslora},
                                  {"dtype", adapter.dtype.empty() ? JsonValue(nullptr) : JsonValue(adapter.dtype)}};
    out.emplace_back(JsonValue::Object{{"name", adapter.name},
                                       {"active", adapter.name == plan.active_adapter()},
                                       {"settings", std::move(settings)},
                                       {"modules", std::move(paths)}});
  }
  return out;
}

JsonValue DirectionToJson(const CollectiveCounts& counts, Direction direction) {
  JsonValue::Object out;
  for (CollectiveKind kind : kCollectiveKinds) {
    const CollectiveCount& count = counts.of(direction, kind);
    if (count.count > 0) out[ToString(kind)] = JsonValue::Object{{"count", count.count}, {"bytes", count.bytes}};
  }
  return out;
}

}  // namespace

JsonValue ToJson(const CollectiveCounts& counts) {
  return JsonValue::Object{{"forward", DirectionToJson(counts, Direction::kForward)},
                           {"backward", DirectionToJson(counts, Direction::kBackward)}};
}

JsonValue ExplainJson(const CompiledPlan& plan, const ExplainOptions& options) {
  JsonValue::Array rules;
  for (size_t i = 0; i < plan.plan->rules.size(); ++i) {
    const Rule& rule = plan.plan->rules[i];
    rules.emplace_back(JsonValue::Object{{"pattern", rule.pattern},
                                         {"style", rule.parameter ? std::string("parameter") : rule.style.name},
                                         {"source", rule.source.ToString()},
                                         {"matches", plan.rule_matches[i]}});
  }
  JsonValue::Object modules;
  for (size_t m = 0; m < plan.tree->modules().size(); ++m) {
    const Module& module = plan.tree->modules()[m];
    if (plan.LayoutsOf(m).rule < 0 && plan.tree->parameters(module).empty()) continue;
    modules[module.path] = ModuleToJson(plan, m, options.rank);
  }
  JsonValue::Object mesh;
  for (const auto& [axis, size] : plan.mesh.Sizes()) mesh[axis] = size;
  JsonValue::Array units;
  for (const ShardedUnit& unit : plan.units) {
    JsonValue::Array params;
    for (ParamRef ref : unit.params) params.emplace_back(plan.tree->PathOf(ref));
    units.emplace_back(
        JsonValue::Object{{"module", unit.path}, {"reshard", unit.reshard}, {"params", std::move(params)}});
  }
  const PlanTotals totals = TotalsOf(plan, options.rank, options.tokens);
  JsonValue::Object out = {
      {"format_version", kExplainFormatVersion},
      {"plan", plan.plan->name},
      {"plan_hash", plan.Hash()},
      {"mesh", std::move(mesh)},
      {"rank", options.rank},
      {"rules", std::move(rules)},
      {"modules", std::move(modules)},
      {"program", StepsAsJson(plan)},
      {"totals", JsonValue::Object{{"params", totals.params},
                                   {"sharded_params", totals.sharded_params},
                                   {"replicated_params", totals.replicated_params},
                                   {"bytes_per_rank", totals.bytes_per_rank},
                                   {"gradient_bytes", totals.gradient_bytes},
                                   {"optimizer_bytes", totals.optimizer_bytes},
                                   {"unit_peak_bytes", MemoryOfUnits(plan, options.rank).peak},
                                   {"collectives", ToJson(totals.collectives)}}},
      {"findings", ToJson(plan.findings)},
  };
  if (!units.empty()) out["units"] = std::move(units);
  if (!plan.adapted.empty()) out["adapters"] = AdaptersOf(plan);
  if (const std::shared_ptr<const DataFlow>& flow = plan.tree->flow(); flow != nullptr) {
    JsonValue::Array edges;
    for (const FlowEdge& edge : flow->edges) {
      edges.emplace_back(JsonValue::Object{
          {"from", flow->FromText(edge)}, {"through", BetweenText(edge.between)}, {"to", flow->ToText(edge)}});
    }
    out["flow"] = std::move(edges);
  }
  if (!options.exported.is_null()) out["exported"] = options.exported;
  if (!options.notes.empty()) out["notes"] = JsonValue::Array(options.notes.begin(), options.notes.end());
  return out;
}

}  // namespace moonshard
