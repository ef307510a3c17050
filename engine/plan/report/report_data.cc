#include "engine/plan/report/report_data.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "engine/core/findings/forms.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/explain/explain.h"
#include "engine/plan/explain/texts.h"
#include "engine/plan/match/candidates.h"
#include "engine/plan/resolve/resolve_plan.h"

namespace moonshard {
namespace {

// Ranks whose memory is worked out one by one, and these times the ranks of the mesh, which each of them takes: a
// larger mesh is shown by its first ones.
constexpr int64_t kMostShown = 4096;
constexpr int64_t kMostShownTimesRanks = int64_t{1} << 22;

JsonValue RedistributionsJson(const ModuleLayouts& layouts, bool inputs, const MeshShape& mesh) {
  JsonValue::Array out;
  const std::vector<std::optional<Redistribution>>& redistributions = inputs ? layouts.inputs : layouts.outputs;
  for (size_t i = 0; i < redistributions.size(); ++i) {
    if (!redistributions[i]) {
      out.emplace_back(nullptr);
      continue;
    }
    const bool gradient = !inputs || layouts.HasGradient(static_cast<int64_t>(i));
    out.emplace_back(
        JsonValue::Object{{"from", redistributions[i]->from.ToText()},
                          {"to", redistributions[i]->to.ToText()},
                          {"forward", CollectiveText(*redistributions[i], mesh, Direction::kForward)},
                          {"backward", CollectiveText(*redistributions[i], mesh, Direction::kBackward, gradient)}});
  }
  return out;
}

JsonValue ParamJson(const Parameter& parameter, const Placement& placement, const MeshShape& mesh) {
  JsonValue::Object out = {
      {"name", parameter.name},
      {"shape", JsonValue::Array(parameter.shape.begin(), parameter.shape.end())},
      {"dtype", ToString(parameter.dtype)},
      {"bytes", BytesOf(parameter.dtype, parameter.elements())},
      {"layout", placement.ToText()},
  };
  if (parameter.is_buffer) out["buffer"] = true;
  if (IsSharded(placement, mesh)) out["dims"] = ShardsJson(parameter.shape, placement, mesh);
  return out;
}

// {rule, style, fallback, inputs, outputs, after, masked, route, exchange, ring, missing, params}
JsonValue StepsJson(const ModuleLayouts& layouts, const CompiledPlan& plan) {
  const ModuleTree::Signature& signature = plan.tree->signatures()[layouts.signature];
  JsonValue::Array params;
  for (size_t p = 0; p < signature.size(); ++p) params.push_back(ParamJson(signature[p], layouts.params[p], plan.mesh));
  JsonValue::Object out = {{"rule", layouts.rule},
                           {"style", layouts.style},
                           {"inputs", RedistributionsJson(layouts, true, plan.mesh)},
                           {"outputs", RedistributionsJson(layouts, false, plan.mesh)},
                           {"params", std::move(params)}};
  if (layouts.is_fallback) out["fallback"] = plan.plan->fallback_source.ToString();
  if (!layouts.after.empty()) out["after"] = JsonValue::Array(layouts.after.begin(), layouts.after.end());
  if (layouts.lookup == Lookup::kMasked) out["masked"] = true;
  if (layouts.route) out["route"] = ToText(*layouts.route);
  if (layouts.exchange) out["exchange"] = ToText(*layouts.exchange);
  if (layouts.ring) out["ring"] = ToText(*layouts.ring);
  if (!layouts.missing.empty()) out["missing"] = layouts.missing;
  return out;
}

JsonValue NodesJson(const FoldedTree& tree) {
  JsonValue::Array out;
  for (const FoldedNode& node : tree.nodes) {
    JsonValue::Array children;
    for (const FoldedNode::Child& child : node.children) {
      children.emplace_back(JsonValue::Array{child.label, child.copies, child.node});
    }
    JsonValue::Object json = {{"s", node.layouts}, {"k", std::move(children)}};
    if (!node.tied.empty()) json["t"] = JsonValue::Array(node.tied.begin(), node.tied.end());
    if (node.unit) json["u"] = 1;
    if (node.recomputed) json["r"] = 1;
    out.emplace_back(std::move(json));
  }
  return out;
}

struct Held {
  int64_t sharded = 0;
  int64_t full = 0;
  bool operator==(const Held&) const = default;
};

// How often each parameter of each of the plan's layouts is stored: those tied to another one are not.
std::vector<std::vector<int64_t>> StoredCounts(const CompiledPlan& plan) {
  const std::set<ParamRef> repeats = TiedCopies(*plan.tree);
  std::vector<std::vector<int64_t>> counts(plan.layouts.size());
  for (size_t s = 0; s < plan.layouts.size(); ++s) counts[s].resize(plan.layouts[s].params.size());
  for (uint32_t m = 0; m < plan.tree->modules().size(); ++m) {
    std::vector<int64_t>& of = counts[plan.layouts_of[m]];
    for (uint32_t p = 0; p < of.size(); ++p) of[p] += repeats.contains({m, p}) ? 0 : 1;
  }
  return counts;
}

Held HeldBy(const CompiledPlan& plan, const std::vector<std::vector<int64_t>>& counts, int64_t rank) {
  Held held;
  for (size_t s = 0; s < plan.layouts.size(); ++s) {
    const ModuleTree::Signature& signature = plan.tree->signatures()[plan.layouts[s].signature];
    for (size_t p = 0; p < counts[s].size(); ++p) {
      if (counts[s][p] == 0) continue;
      const Placement& placement = plan.layouts[s].params[p];
      const std::vector<int64_t> local = LocalShape(signature[p].shape, placement, plan.mesh, rank);
      const int64_t elements = std::accumulate(local.begin(), local.end(), int64_t{1}, std::multiplies<>());
      int64_t& sum = IsSharded(placement, plan.mesh) ? held.sharded : held.full;
      sum += counts[s][p] * BytesOf(signature[p].dtype, elements);
    }
  }
  return held;
}

// Neighbouring ranks that hold as much as each other are one row.
JsonValue MemoryJson(const CompiledPlan& plan) {
  const std::vector<std::vector<int64_t>> counts = StoredCounts(plan);
  JsonValue::Array rows;
  const int64_t world = plan.mesh.world_size();
  const int64_t ranks = std::min({world, kMostShown, kMostShownTimesRanks / world});
  Held held;
  int64_t begin = 0;
  const auto add = [&](int64_t end) {
    const std::string text = std::to_string(begin) + (end > begin + 1 ? ".." + std::to_string(end - 1) : "");
    rows.emplace_back(JsonValue::Object{
        {"ranks", text}, {"first", begin}, {"count", end - begin}, {"sharded", held.sharded}, {"full", held.full}});
  };
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Held next = HeldBy(plan, counts, rank);
    if (rank > 0 && next != held) {
      add(rank);
      begin = rank;
    }
    held = next;
  }
  add(ranks);
  return rows;
}

const char* TextOf(PlannedCollective::Of of) {
  constexpr std::array kTexts = {"input", "output", "exchange", "exchange counts", "ring", "gradients", "unit"};
  return kTexts[static_cast<size_t>(of)];
}

// Collectives that differ only in the numbers of their module's path are one entry.
JsonValue CallsJson(const CompiledPlan& plan, int64_t rank, Tokens tokens) {
  using Key = std::tuple<std::string, PlannedCollective::Of, Direction, CollectiveKind, int64_t>;
  std::map<Key, size_t> known;
  struct Entry {
    PlannedCollective first;
    std::vector<std::string> paths;
  };
  std::vector<Entry> entries;
  for (const PlannedCollective& call : CollectivesOf(plan, rank, tokens)) {
    std::string path;
    if (call.module >= 0) path = plan.tree->modules()[static_cast<size_t>(call.module)].path;
    if (call.unit >= 0) path = plan.units[static_cast<size_t>(call.unit)].path;
    const Key key{PathClassOf(path), call.of, call.direction, call.kind, call.bytes};
    const auto [at, fresh] = known.emplace(key, entries.size());
    if (fresh) entries.push_back({call, {}});
    entries[at->second].paths.push_back(std::move(path));
  }
  JsonValue::Array out;
  for (const Entry& entry : entries) {
    out.emplace_back(JsonValue::Object{{"at", FoldPaths(entry.paths)},
                                       {"copies", entry.paths.size()},
                                       {"of", TextOf(entry.first.of)},
                                       {"direction", ToString(entry.first.direction)},
                                       {"kind", ToString(entry.first.kind)},
                                       {"bytes", entry.first.bytes}});
  }
  return out;
}

JsonValue AxesJson(const MeshShape& mesh) {
  JsonValue::Array axes;
  for (MeshAxis axis : kMeshAxes) {
    if (mesh.size(axis) > 1) axes.emplace_back(JsonValue::Object{{"name", ToString(axis)}, {"size", mesh.size(axis)}});
  }
  return axes;
}

// `matches`: of each rule.
JsonValue RulesJson(const Plan& plan, const std::vector<int64_t>& matches) {
  JsonValue::Array rules;
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    const Rule& rule = plan.rules[i];
    rules.emplace_back(JsonValue::Object{
        {"pattern", rule.pattern},
        {"style", rule.parameter ? rule.parameter->ToText() : rule.style.name},
        {"source", rule.source.ToString()},
        {"text", rule.source.text},
        {"matches", matches[i]},
        {"parameter", rule.parameter.has_value()},
    });
  }
  return rules;
}

JsonValue FindingsJson(const Diagnostics& diagnostics) {
  JsonValue::Array findings;
  for (const Diagnostic& d : diagnostics) {
    JsonValue finding = ToJson(d);
    finding.AsObject()["title"] = InfoOf(d.finding).title;
    findings.push_back(std::move(finding));
  }
  return findings;
}

// How many modules and parameters each rule's pattern matches, before precedence.
std::vector<int64_t> MatchCounts(const Plan& plan, const ModuleTree* tree) {
  std::vector<int64_t> counts(plan.rules.size());
  if (tree == nullptr) return counts;
  const Candidates candidates = FindCandidates(plan, *tree);
  const auto add = [&](const std::vector<int32_t>& rules) {
    for (int32_t rule : rules) ++counts[static_cast<size_t>(rule)];
  };
  for (const std::vector<int32_t>& rules : candidates.of_module) add(rules);
  for (const auto& entry : candidates.of_parameter) add(entry.rules);
  return counts;
}

}  // namespace

JsonValue ReportData(const CompiledPlan& plan, const ReportOptions& options) {
  JsonValue::Array layouts;
  for (const ModuleLayouts& of : plan.layouts) layouts.push_back(StepsJson(of, plan));
  const FoldedTree tree = FoldTree(plan);
  const Tokens tokens = options.tokens.value_or(FewestTokens(plan));
  const PlanTotals totals = TotalsOf(plan, options.rank, tokens);
  return JsonValue::Object{
      {"model", options.model},
      {"plan", plan.plan->name},
      {"chosen", plan.plan->chosen},
      {"hash", plan.Hash()},
      {"world", plan.mesh.world_size()},
      {"rank", options.rank},
      {"tokens", JsonValue::Array{tokens.batch, tokens.sequence}},
      {"axes", AxesJson(plan.mesh)},
      {"totals",
       JsonValue::Object{
           {"params", totals.params}, {"sharded", totals.sharded_params}, {"replicated", totals.replicated_params}}},
      {"modules", plan.tree->modules().size()},
      {"rules", RulesJson(*plan.plan, plan.rule_matches)},
      {"findings", FindingsJson(plan.findings)},
      {"steps", std::move(layouts)},
      {"nodes", NodesJson(tree)},
      {"root", tree.nodes.size() - 1},
      {"memory", MemoryJson(plan)},
      {"calls", CallsJson(plan, options.rank, tokens)},
  };
}

JsonValue ReportData(const FailedPlan& plan, const ReportOptions& options) {
  JsonValue::Object out = {{"totals", JsonValue::Object{{"params", 0}, {"sharded", 0}, {"replicated", 0}}},
                           {"tokens", JsonValue::Array{1, 1}},
                           {"modules", 0},
                           {"steps", JsonValue::Array()},
                           {"nodes", JsonValue::Array{JsonValue::Object{{"s", -1}, {"k", JsonValue::Array()}}}},
                           {"root", 0}};
  // The tree is that of a plan without rules, which every model takes.
  if (plan.tree != nullptr) {
    const Result<CompiledPlan> bare = ResolvePlan(std::make_shared<const Plan>(), plan.tree, MeshShape());
    if (bare.ok()) out = ReportData(bare.value(), {options.model, 0, std::nullopt}).AsObject();
  }
  out["model"] = options.model;
  out["failed"] = true;
  out["plan"] = plan.plan != nullptr ? plan.plan->name : plan.name;
  out["chosen"] = plan.plan != nullptr ? plan.plan->chosen : "";
  out["hash"] = "";
  out["world"] = plan.mesh.world_size();
  out["rank"] = 0;
  out["axes"] = AxesJson(plan.mesh);
  out["rules"] = plan.plan != nullptr ? RulesJson(*plan.plan, MatchCounts(*plan.plan, plan.tree.get()))
                                      : JsonValue(JsonValue::Array());
  out["findings"] = FindingsJson(plan.findings);
  out["memory"] = JsonValue::Array();
  out["calls"] = JsonValue::Array();
  return out;
}

}  // namespace moonshard
