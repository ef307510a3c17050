#include <algorithm>
#include <map>
#include <set>

#include "engine/core/base/text.h"
#include "engine/core/base/visible.h"
#include "engine/layout/data_flow.h"
#include "engine/plan/compile/context_parallel.h"
#include "engine/plan/compile/data_parallel.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/compile/unit_memory.h"
#include "engine/plan/explain/explain.h"
#include "engine/plan/explain/texts.h"

namespace moonshard {
namespace {

std::string Padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

// "  (all_reduce forward, reduce_scatter backward)", or nothing.
std::string CostOf(const Redistribution& redistribution, const MeshShape& mesh, bool gradient) {
  const std::string collectives = CollectivesText(redistribution, mesh, gradient);
  return collectives.empty() ? "" : "  (" + collectives + ")";
}

void AddRedistributions(std::string& out, const char* what, const ModuleLayouts& layouts, bool inputs,
                        const MeshShape& mesh) {
  const std::vector<std::optional<Redistribution>>& redistributions = inputs ? layouts.inputs : layouts.outputs;
  for (size_t i = 0; i < redistributions.size(); ++i) {
    if (!redistributions[i] || redistributions[i]->from == redistributions[i]->to) continue;
    const bool gradient = !inputs || layouts.HasGradient(static_cast<int64_t>(i));
    out += "    " + Padded(what + (redistributions.size() > 1 ? " " + std::to_string(i) : std::string()), 12) +
           redistributions[i]->from.ToText() + " -> " + redistributions[i]->to.ToText() +
           CostOf(*redistributions[i], mesh, gradient) + "\n";
  }
}

// The edges of the data flow into the calls of each module, by index of the module; empty if the flow is not known.
using EdgesInto = std::vector<std::vector<const FlowEdge*>>;

EdgesInto EdgesOf(const ModuleTree& tree) {
  EdgesInto out;
  const DataFlow* flow = tree.flow().get();
  if (flow == nullptr) return out;
  out.resize(tree.modules().size());
  std::vector<int64_t> module_of;
  for (const FlowCall& call : flow->calls) module_of.push_back(tree.Find(call.module));
  for (const FlowEdge& edge : flow->edges) {
    const int64_t module = edge.to < 0 ? -1 : module_of[static_cast<size_t>(edge.to)];
    if (module >= 0) out[static_cast<size_t>(module)].push_back(&edge);
  }
  return out;
}

// One line for each argument: "fed by 0    model.layers.{0..1}.input_layernorm, model.norm (residual)".
void AddFeeders(std::string& out, const ModuleTree& tree, const std::vector<uint32_t>& modules,
                const EdgesInto& edges) {
  if (edges.empty()) return;
  const DataFlow& flow = *tree.flow();
  // Feeding modules of one path class through the same operators are one text.
  std::map<uint32_t, std::vector<std::pair<std::pair<int64_t, uint8_t>, std::set<std::string>>>> by_argument;
  for (const uint32_t module : modules) {
    for (const FlowEdge* edge : edges[module]) {
      const bool of_model = edge->from < 0;
      const std::string from =
          of_model ? "input " + flow.inputs[edge->output] : flow.calls[static_cast<size_t>(edge->from)].module;
      const int64_t index = of_model ? -1 : tree.Find(from);
      const int64_t kind = index < 0 ? -1 - static_cast<int64_t>(edge->output)
                                     : static_cast<int64_t>(tree.modules()[static_cast<size_t>(index)].path_class);
      auto& groups = by_argument[edge->input];
      const std::pair key(kind, edge->between);
      auto group = std::ranges::find_if(groups, [&](const auto& one) { return one.first == key; });
      if (group == groups.end()) group = groups.insert(groups.end(), {key, {}});
      group->second.insert(from);
    }
  }
  for (const auto& [argument, groups] : by_argument) {
    std::vector<std::string> texts;
    for (const auto& [key, paths] : groups) {
      texts.push_back((key.first < 0 ? *paths.begin() : FoldPaths({paths.begin(), paths.end()})) +
                      (key.second == 0 ? "" : " (" + BetweenText(key.second) + ")"));
    }
    out += "    " + Padded("fed by " + std::to_string(argument), 12) + Visible(Join(texts, ", ")) + "\n";
  }
}

void AddEntry(std::string& out, const CompiledPlan& plan, const std::vector<uint32_t>& modules, const EdgesInto& edges,
              const ExplainOptions& options) {
  const ModuleLayouts& layouts = plan.LayoutsOf(modules.front());
  const ModuleTree::Signature& signature = plan.tree->signatures()[layouts.signature];
  std::vector<std::string> paths;
  for (uint32_t m : modules) paths.push_back(plan.tree->modules()[m].path);
  std::string source = "no rule";
  if (layouts.is_fallback) source = plan.plan->fallback_source.ToString();
  if (layouts.rule >= 0) source = plan.plan->rules[static_cast<size_t>(layouts.rule)].source.ToString();
  const std::string path = Visible(FoldPaths(paths));
  out += Padded(path.empty() ? "(root)" : path, 56) + "  " +
         Padded(layouts.style.empty() ? "-" : Visible(layouts.style), 16) + "  " + Visible(source) + "\n";
  AddFeeders(out, *plan.tree, modules, edges);
  AddRedistributions(out, "input", layouts, true, plan.mesh);
  for (size_t i = 0; i < signature.size(); ++i) {
    const std::vector<int64_t> local = LocalShape(signature[i].shape, layouts.params[i], plan.mesh, options.rank);
    std::string shapes = ShapeToString(signature[i].shape);
    if (local != signature[i].shape) shapes += " -> " + ShapeToString(local);
    out += "    " + Padded(Visible(signature[i].name), 11) + " " + Padded(shapes, 36) + "  " +
           Padded(layouts.params[i].ToText(), 20) + "  " + ToString(signature[i].dtype) + "\n";
  }
  AddRedistributions(out, "output", layouts, false, plan.mesh);
}

void AddDirection(std::string& out, const CollectiveCounts& counts, Direction direction) {
  std::vector<std::string> kinds;
  for (CollectiveKind kind : kCollectiveKinds) {
    const CollectiveCount& count = counts.of(direction, kind);
    if (count.count == 0) continue;
    kinds.push_back(std::to_string(count.count) + " " + ToString(kind) + " (" + BytesText(count.bytes) + ")");
  }
  out += "  " + std::string(ToString(direction)) + ": " + (kinds.empty() ? "none" : Join(kinds, ", ")) + "\n";
}

std::string After(bool reshard, int64_t ranks) {
  if (!reshard) return "  until its backward ends";
  return ranks == 0 ? "" : "  then sharded over " + std::to_string(ranks) + " ranks";
}

void AddPrecision(std::string& out, const CompiledPlan& plan) {
  if (plan.plan->precision) out += "\n" + ToText(*plan.plan->precision) + "\n";
  std::map<std::string, std::vector<std::string>> kept;
  for (const ModuleDType& module : plan.kept_dtypes) kept[module.dtype].push_back(module.path);
  for (const auto& [dtype, paths] : kept) {
    out += "computed in " + dtype + ": " + Visible(FoldClasses(paths)) + "\n";
  }
}

void AddAdapters(std::string& out, const CompiledPlan& plan) {
  if (plan.adapted.empty()) return;
  std::map<int32_t, std::vector<std::string>> adapted;
  for (const auto& [path, section] : plan.adapted) adapted[section].push_back(path);
  out += "\n";
  for (const auto& [section, paths] : adapted) {
    const Adapter& adapter = plan.plan->adapters[static_cast<size_t>(section)];
    out += "lora " + adapter.name + ", " + SettingsText(adapter) + ": " + Visible(FoldClasses(paths)) +
           (adapter.name == plan.active_adapter() ? "" : "  (not active)") + "\n";
  }
  int64_t trained = 0;
  int64_t all = 0;
  const std::set<ParamRef> repeats = TiedCopies(*plan.tree);
  for (uint32_t m = 0; m < plan.tree->modules().size(); ++m) {
    for (uint32_t p = 0; p < plan.LayoutsOf(m).params.size(); ++p) {
      if (plan.tree->At({m, p}).is_buffer || repeats.contains({m, p})) continue;
      all += plan.tree->At({m, p}).elements();
      if (plan.Trains({m, p})) trained += plan.tree->At({m, p}).elements();
    }
  }
  out += "trained: " + std::to_string(trained) + " of " + std::to_string(all) + " parameters; the others are frozen\n";
}

void AddUnits(std::string& out, const CompiledPlan& plan) {
  AddPrecision(out, plan);
  AddAdapters(out, plan);
  const int64_t ranks = plan.unit_settings.ranks;
  if (plan.units.empty() || ranks == 1) return;
  const AxisSet axes = plan.unit_settings.axes;
  out += "\nfsdp over " + std::to_string(ranks) + " ranks" + (axes.single() ? "" : " of " + ToString(axes)) +
         ", full while used:\n";
  for (const bool reshard : {false, true}) {
    std::vector<std::string> paths;
    int64_t reshard_ranks = 0;
    for (const ShardedUnit& unit : plan.units) {
      if (unit.reshard != reshard) continue;
      reshard_ranks = unit.reshard_ranks;
      if (unit.params.empty()) continue;
      if (unit.path.empty()) {
        out += "    (root)  all other parameters, until its backward ends\n";
      } else {
        paths.push_back(unit.path);
      }
    }
    if (paths.empty()) continue;
    out += "    " + Visible(FoldPaths(paths)) + After(reshard, reshard_ranks) + "\n";
  }
}

// Without quotes around texts; the members of an object, and the elements of an array of texts or objects, with commas
// between: `input_ids [3,17], labels [3,17]`.
std::string PlainText(const JsonValue& value) {
  if (value.is_string()) return value.AsString();
  std::vector<std::string> parts;
  if (value.is_object()) {
    for (const auto& [key, one] : value.AsObject()) parts.push_back(key + " " + WriteJson(one, 0));
    return Join(parts, ", ");
  }
  if (!value.is_array() || value.AsArray().empty() || value.AsArray().front().is_number()) return WriteJson(value, 0);
  for (const JsonValue& one : value.AsArray()) parts.push_back(PlainText(one));
  return Join(parts, "; ");
}

// One line for each key, with the different values that it has in the archives.
void AddExported(std::string& out, const JsonValue& archives) {
  if (!archives.is_array()) return;
  std::map<std::string, std::vector<std::string>> values;
  for (const JsonValue& archive : archives.AsArray()) {
    for (const auto& [key, value] : archive.AsObject()) {
      std::string text = PlainText(value);
      if (std::ranges::find(values[key], text) == values[key].end()) values[key].push_back(std::move(text));
    }
  }
  out += "exported:\n";
  for (const auto& [key, texts] : values) out += "  " + key + ": " + Visible(Join(texts, "; ")) + "\n";
}

// Of FewestTokens.
std::string TokensPerRank(const CompiledPlan& plan) {
  const bool zigzag = plan.context_parallel && plan.own_tokens().zigzag;
  if (zigzag && plan.mesh.cp_heads() > 1) return ", two tokens per rank";
  return zigzag ? ", two tokens per rank, one in each chunk" : ", one token per rank";
}

}  // namespace

std::string ExplainText(const CompiledPlan& plan, const ExplainOptions& options) {
  std::string out = "plan " + Visible(plan.plan->name) + "  mesh " + plan.mesh.ToString() + "  rank " +
                    std::to_string(options.rank) + " of " + std::to_string(plan.mesh.world_size()) + "  hash " +
                    plan.Hash() + "\n\n";
  // Entries in the tree order of their first modules.
  // One entry for all modules of a path class with the same layouts.
  std::map<std::pair<uint32_t, uint32_t>, size_t> numbers;
  std::vector<std::vector<uint32_t>> entries;
  for (uint32_t m = 0; m < plan.tree->modules().size(); ++m) {
    const Module& module = plan.tree->modules()[m];
    if (plan.LayoutsOf(m).rule < 0 && plan.tree->parameters(module).empty()) continue;
    const auto [entry, fresh] = numbers.try_emplace({module.path_class, plan.layouts_of[m]}, entries.size());
    if (fresh) entries.emplace_back();
    entries[entry->second].push_back(m);
  }
  const EdgesInto edges = EdgesOf(*plan.tree);
  for (const std::vector<uint32_t>& modules : entries) AddEntry(out, plan, modules, edges, options);
  for (const auto& tie : plan.tree->ties()) {
    out += "tied:";
    for (ParamRef p : tie) out += " " + Visible(plan.tree->PathOf(p));
    out += "\n";
  }
  AddUnits(out, plan);
  if (HasOwnInputs(plan)) {
    out += "\ninputs: each rank of cp calls the model with its own tokens, " + plan.own_tokens().ToText() +
           "; a call with masks, positions or documents gathers them by one all_gather, which is not counted below\n";
  }
  out += "\n" + ProgramText(plan);
  const PlanTotals totals = TotalsOf(plan, options.rank, options.tokens);
  out += "\nparameters: " + std::to_string(totals.params) + " (" + std::to_string(totals.sharded_params) +
         " in sharded tensors, " + std::to_string(totals.replicated_params) + " in replicated ones)\n";
  out += "this rank holds: " + BytesText(totals.bytes_per_rank) + "\n";
  out += "in training also: " + BytesText(totals.gradient_bytes) + " of gradients, " +
         BytesText(totals.optimizer_bytes) + " of AdamW's moments";
  const UnitMemory units = MemoryOfUnits(plan, options.rank);
  if (units.peak > 0) out += ", at most " + BytesText(units.peak) + " of full parameters and gradients";
  out += "\ncollectives of one step" +
         (options.tokens ? ", " + std::to_string(options.tokens->batch) + " x " +
                               std::to_string(options.tokens->sequence) + " tokens"
                         : TokensPerRank(plan)) +
         ":\n";
  AddDirection(out, totals.collectives, Direction::kForward);
  AddDirection(out, totals.collectives, Direction::kBackward);
  AddExported(out, options.exported);
  if (!options.notes.empty()) out += "notes of the exporter:\n";
  for (const std::string& note : options.notes) out += "  " + Visible(note) + "\n";
  return out;
}

}  // namespace moonshard
