// :flow, :cost.
#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>

#include "dsl/commands/repl/command.h"
#include "engine/core/base/text.h"
#include "engine/layout/data_flow.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/plan/explain/texts.h"

namespace moonshard {
namespace {

// The role of a module in a layer, as far as its path below the layer and its layouts determine it.
struct Entry {
  std::vector<std::string> paths;  // of modules that differ only in numbers, as experts do
  uint32_t layouts = 0;
  std::string block;  // its component below the layer; "" directly in the layer
  bool makes_heads = false;
  bool makes_shards = false;
  bool makes_partial = false;
  int place = 0;
};

// The components directly below a layer that contain modules.
struct Blocks {
  std::set<std::string> attention;  // those that make heads
  std::set<std::string> others;
};

bool IsNumber(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool Any(const std::vector<std::optional<Redistribution>>& redistributions, const auto& is) {
  return std::ranges::any_of(redistributions, [&](const std::optional<Redistribution>& move) {
    return move && std::ranges::any_of(move->from.by_axis, is);
  });
}

// Where a decoder usually calls a module of a layer: the norm before attention, what makes queries, keys and values,
// what is done to them, the output; then the same of the mlp. Where names do not tell: attention is the block that
// makes heads, a norm that is named after another block belongs to it, and what makes partial sums comes last in its
// block. Equal places keep the tree's order.
int UsualPlace(const std::string& path, const Entry& entry, const Blocks& blocks) {
  const auto has = [&](std::initializer_list<const char*> words) {
    return std::ranges::any_of(words, [&](const char* word) { return path.find(word) != std::string::npos; });
  };
  const std::string last = path.substr(path.rfind('.') + 1);
  const bool norm = last.find("norm") != std::string::npos || last.starts_with("ln_");
  if (norm && entry.block.empty()) {
    if (has({"post_feedforward", "post_mlp"})) return 90;
    if (has({"post_attention", "pre_feedforward", "pre_mlp", "ffn_norm", "ln_2", "norm2"})) {
      return 50;
    }
    const auto named_after = [&](const std::string& block) { return path.find(block) != std::string::npos; };
    return std::ranges::any_of(blocks.others, named_after) ? 50 : 0;
  }
  const bool attention = has({"attn.", "attention."}) || blocks.attention.contains(entry.block);
  const bool back =
      has({"o_proj", "out_proj", "down_proj", "fc2", "fc_out", "c_proj", "w2", "dense_4h_to_h", "to_out"}) ||
      last == "dense" || entry.makes_partial;
  const int base = attention ? 10 : 60;
  if (norm) return base + 10;
  // The gate of a router returns scores, which every rank has in full; the gate of an mlp returns shards.
  const bool router = has({"gate", "router"}) && !has({"gate_proj", "gate_up"}) && !entry.makes_shards && !back;
  if (router && !attention) return base;
  return base + (back ? 20 : 5);
}

// The paths that end with the first number in the tree: "model.layers.0" and so on, each once, in the tree's order.
std::vector<std::string> LayersOf(const ModuleTree& tree) {
  std::vector<std::string> layers;
  std::set<std::string> known;
  for (const Module& module : tree.modules()) {
    const std::vector<std::string> components = Split(module.path, '.');
    const auto number = std::ranges::find_if(components, IsNumber);
    if (number == components.end()) continue;
    std::string layer = Join(std::span(components.begin(), number + 1), ".");
    if (known.insert(layer).second) layers.push_back(std::move(layer));
  }
  return layers;
}

// The layer's path: "3" is the first layer with this number.
std::optional<std::string> LayerPath(const ModuleTree& tree, const std::vector<std::string>& layers,
                                     const std::string& wanted) {
  if (IsNumber(wanted)) {
    const auto found = std::ranges::find_if(layers, [&](const std::string& l) { return l.ends_with("." + wanted); });
    return found == layers.end() ? std::nullopt : std::optional(*found);
  }
  const bool there = std::ranges::any_of(tree.modules(), [&](const Module& module) {
    return module.path == wanted || module.path.starts_with(wanted + ".");
  });
  return there ? std::optional(wanted) : std::nullopt;
}

std::string Side(const std::vector<std::optional<Redistribution>>& redistributions, bool from) {
  std::vector<std::string> texts;
  for (const std::optional<Redistribution>& move : redistributions)
    texts.push_back(move ? (from ? move->from : move->to).ToText() : "-");
  return Join(texts, ", ");
}

// "replicate -> shared: all_reduce backward" of every redistribution that communicates, of an exchange of tokens and of
// a ring.
std::string Collectives(const ModuleLayouts& layouts, const MeshShape& mesh, Direction direction) {
  std::vector<std::string> texts;
  for (const auto* redistributions : {&layouts.inputs, &layouts.outputs}) {
    for (const std::optional<Redistribution>& move : *redistributions) {
      if (!move) continue;
      const bool ids = layouts.looks_up && &move == layouts.inputs.data();
      const std::string kind = CollectiveText(*move, mesh, direction, !ids);
      if (!kind.empty()) texts.push_back(kind);
    }
  }
  if (layouts.exchange && mesh.size(MeshAxis::kEp) > 1) {
    texts.emplace_back(direction == Direction::kForward ? "3 all_to_all" : "2 all_to_all");
  }
  if (layouts.ring && mesh.size(MeshAxis::kCp) > 1) texts.push_back(RingCollectiveText(mesh, direction));
  return Join(texts, ", ");
}

// What feeds a module and what it feeds, where the model knows (an exported program).
void AddTrueFlow(const DataFlow& flow, const std::string& module, Answer& out) {
  Table into("what feeds " + module, {"from", "through", "to"});
  for (const FlowEdge& edge : flow.Into(module)) {
    into.rows.push_back({flow.FromText(edge), BetweenText(edge.between), flow.ToText(edge)});
  }
  Table from("what " + module + " feeds", {"from", "through", "to"});
  for (const FlowEdge& edge : flow.OutOf(module)) {
    from.rows.push_back({flow.FromText(edge), BetweenText(edge.between), flow.ToText(edge)});
  }
  out.tables.push_back(std::move(into));
  out.tables.push_back(std::move(from));
}

// The first call of a module, or of what it holds, in the order of calls; those that are never called are last.
size_t CallPlace(const DataFlow& flow, const std::string& module) {
  for (size_t i = 0; i < flow.calls.size(); ++i) {
    const std::string& path = flow.calls[i].module;
    if (path == module) return i;
  }
  return flow.calls.size();
}

}  // namespace

Answer RunFlow(CommandCall& call) {
  if (std::optional<Answer> refused = NeedCompiled(call)) return *refused;
  if (call.arguments.empty()) return Refused(call, ":flow takes a layer: a number or a path", ":flow 0");
  const CompiledPlan& plan = *call.workspace.compiled();
  const std::vector<std::string> layers = LayersOf(*plan.tree);
  const std::string there = layers.empty() ? "the model has no numbered layers; give a path"
                                           : "the model's layers are " + FoldClasses(layers);
  const std::string wanted = ReadPattern(call.arguments).text;
  const std::optional<std::string> layer = LayerPath(*plan.tree, layers, wanted);
  if (!layer) return Refused(call, "the model has no layer '" + wanted + "'", there);
  if (std::ranges::any_of(layers, [&](const std::string& path) { return path.starts_with(*layer + "."); })) {
    return Refused(call, "'" + wanted + "' contains layers, and :flow takes one layer", there);
  }
  std::map<std::pair<uint32_t, uint32_t>, size_t> numbers;
  std::vector<Entry> entries;
  Blocks blocks;
  for (size_t m = 0; m < plan.tree->modules().size(); ++m) {
    const Module& module = plan.tree->modules()[m];
    if (module.path != *layer && !module.path.starts_with(*layer + ".")) continue;
    const ModuleLayouts& layouts = plan.LayoutsOf(m);
    if (layouts.style.empty() && plan.tree->parameters(module).empty()) continue;
    const std::string below = module.path == *layer ? "" : module.path.substr(layer->size() + 1);
    const auto [entry, fresh] = numbers.try_emplace({module.path_class, plan.layouts_of[m]}, entries.size());
    if (fresh) {
      const auto heads = [](const Layout& l) {
        return l.is_shard() && (l.heads > 0 || std::ranges::any_of(l.parts, [](const auto& p) { return p.heads > 0; }));
      };
      const size_t dot = below.find('.');
      entries.push_back(
          {.layouts = plan.layouts_of[m],
           .block = dot == std::string::npos ? "" : below.substr(0, dot),
           .makes_heads = Any(layouts.outputs, heads),
           .makes_shards = Any(layouts.outputs, &Layout::is_shard),
           .makes_partial = Any(layouts.outputs, [](const Layout& l) { return l.kind == LayoutKind::kPartial; })});
      if (entries.back().makes_heads) blocks.attention.insert(entries.back().block);
    }
    entries[entry->second].paths.push_back(below.empty() ? "(the layer)" : below);
  }
  for (const Entry& entry : entries) {
    if (!entry.block.empty() && !blocks.attention.contains(entry.block)) blocks.others.insert(entry.block);
  }
  const DataFlow* known = plan.tree->flow().get();
  for (Entry& entry : entries) {
    const std::string& below = entry.paths.front();
    entry.place = known != nullptr
                      ? static_cast<int>(CallPlace(*known, below == "(the layer)" ? *layer : *layer + "." + below))
                      : UsualPlace(below, entry, blocks);
  }
  std::ranges::stable_sort(entries, {}, &Entry::place);
  Table table("flow of " + *layer, {"module", "style", "arrives", "used as", "makes", "leaves", "forward", "backward"});
  for (const Entry& entry : entries) {
    const ModuleLayouts& layouts = plan.layouts[entry.layouts];
    table.rows.push_back({FoldPaths(entry.paths), layouts.style.empty() ? "-" : layouts.style,
                          Side(layouts.inputs, true), Side(layouts.inputs, false), Side(layouts.outputs, true),
                          Side(layouts.outputs, false), Collectives(layouts, plan.mesh, Direction::kForward),
                          Collectives(layouts, plan.mesh, Direction::kBackward)});
  }
  Answer out;
  out.tables.push_back(std::move(table));
  if (known != nullptr) AddTrueFlow(*known, *layer, out);
  out.notes.push_back(
      "layer " + *layer +
      (known != nullptr
           ? ", in the order of the program's calls; siblings that read the same tensor share its redistribution"
           : ", in the usual order of a decoder, as far as names and layouts determine it; "
             "siblings that read the same tensor share its redistribution"));
  return out;
}

Answer RunCost(CommandCall& call) {
  if (std::optional<Answer> refused = NeedCompiled(call)) return *refused;
  const CompiledPlan& plan = *call.workspace.compiled();
  const int64_t rank = call.workspace.rank();
  PlanTotals totals = call.workspace.totals();
  if (!call.arguments.empty()) {
    const Result<std::pair<int64_t, int64_t>> tokens = ParseTokens(call.arguments);
    if (!tokens.ok()) {
      return Refused(call, tokens.diagnostics().front().message, "two positive numbers, as in :cost 2,4096");
    }
    totals = TotalsOf(plan, rank, Tokens{tokens.value().first, tokens.value().second});
  }
  Table sum = Table::Facts("rank", {{"rank", rank},
                                    {"parameters", totals.params},
                                    {"in sharded parameters", totals.sharded_params},
                                    {"in replicated parameters", totals.replicated_params},
                                    {"bytes per rank", totals.bytes_per_rank}});
  sum.byte_columns = {"bytes per rank"};
  Table collectives("collectives", {"direction", "collective", "count", "bytes"});
  collectives.byte_columns = {"bytes"};
  for (Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (CollectiveKind kind : kCollectiveKinds) {
      const CollectiveCount& count = totals.collectives.of(direction, kind);
      if (count.count > 0) collectives.rows.push_back({ToString(direction), ToString(kind), count.count, count.bytes});
    }
  }
  struct Entry {
    std::vector<std::string> paths;
    uint32_t layouts = 0;
    int64_t full = 0;
    int64_t held = 0;
  };
  std::map<std::pair<uint32_t, uint32_t>, size_t> numbers;
  std::vector<Entry> entries;
  for (size_t m = 0; m < plan.tree->modules().size(); ++m) {
    const Module& module = plan.tree->modules()[m];
    const ModuleTree::Signature& signature = plan.tree->parameters(module);
    if (signature.empty()) continue;
    const auto [found, fresh] = numbers.try_emplace({module.path_class, plan.layouts_of[m]}, entries.size());
    if (fresh) entries.push_back({{}, plan.layouts_of[m]});
    Entry& entry = entries[found->second];
    entry.paths.push_back(module.path);
    for (size_t p = 0; p < signature.size(); ++p) {
      int64_t local = 1;
      for (int64_t size : LocalShape(signature[p].shape, plan.LayoutsOf(m).params[p], plan.mesh, rank)) local *= size;
      entry.held += BytesOf(signature[p].dtype, local);
      entry.full += BytesOf(signature[p].dtype, signature[p].elements());
    }
  }
  std::ranges::stable_sort(entries, std::greater(), &Entry::held);
  Table modules("modules", {"path", "modules", "whole", "on this rank", "forward", "backward"});
  modules.byte_columns = {"whole", "on this rank"};
  for (const Entry& entry : entries) {
    const ModuleLayouts& layouts = plan.layouts[entry.layouts];
    modules.rows.push_back({FoldPaths(entry.paths), entry.paths.size(), entry.full, entry.held,
                            Collectives(layouts, plan.mesh, Direction::kForward),
                            Collectives(layouts, plan.mesh, Direction::kBackward)});
  }
  return {.tables = {std::move(sum), std::move(collectives), std::move(modules)}};
}

}  // namespace moonshard
