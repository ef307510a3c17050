// :flow, :cost.
#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "dsl/repl/command.h"
#include "engine/base/text.h"
#include "engine/compile/local_shape.h"
#include "engine/explain/fold.h"
#include "engine/explain/words.h"

namespace moonshard {
namespace {

// Where a decoder usually calls a module of a layer, by the words in its path below the layer: the norm before attention,
// queries, keys and values, what is done to them, the output; then the same of the mlp. Equal places keep the tree's order.
int UsualPlace(const std::string& path) {
  const auto has = [&](std::initializer_list<const char*> words) {
    return std::ranges::any_of(words, [&](const char* word) { return path.find(word) != std::string::npos; });
  };
  const std::string last = path.substr(path.rfind('.') + 1);
  const bool norm = last.find("norm") != std::string::npos || last.starts_with("ln_");
  const bool attention = has({"attn.", "attention."});
  const bool inner = path.find('.') != std::string::npos;
  if (norm && !inner) {
    if (has({"post_feedforward", "post_mlp"})) return 90;
    if (has({"post_attention", "pre_feedforward", "pre_mlp", "ffn_norm", "ln_2", "norm2"})) return 50;
    return 0;
  }
  const bool back =
      has({"o_proj", "out_proj", "down_proj", "fc2", "fc_out", "c_proj", "w2", "dense_4h_to_h", "to_out"}) ||
      last == "dense";
  const int base = attention ? 10 : 60;
  if (norm) return base + 10;
  if (has({"gate", "router"}) && !has({"gate_proj", "gate_up"}) && !attention) return base;
  return base + (back ? 20 : 5);
}

// The layer's path: "3" is the first path with a component 3 whose component before says that it is a layer.
std::optional<std::string> LayerPath(const ModuleTree& tree, const std::string& wanted) {
  const bool number =
      !wanted.empty() && std::ranges::all_of(wanted, [](unsigned char c) { return std::isdigit(c) != 0; });
  for (const Module& module : tree.modules()) {
    if (!number) {
      if (module.path == wanted || module.path.starts_with(wanted + ".")) return wanted;
      continue;
    }
    const std::vector<std::string> components = Split(module.path, '.');
    for (size_t i = 1; i < components.size(); ++i) {
      if (components[i] == wanted) return Join(std::span(components).first(i + 1), ".");
    }
  }
  return std::nullopt;
}

std::string Side(const std::vector<std::optional<Move>>& moves, bool from) {
  std::vector<std::string> texts;
  for (const std::optional<Move>& move : moves) texts.push_back(move ? (from ? move->from : move->to).ToText() : "-");
  return Join(texts, ", ");
}

// "replicate -> shared: all_reduce backward" of every move that communicates.
std::string Collectives(const ModuleSteps& steps, const MeshShape& mesh, Direction direction) {
  std::vector<std::string> texts;
  for (const auto* moves : {&steps.inputs, &steps.outputs}) {
    for (const std::optional<Move>& move : *moves) {
      if (!move) continue;
      const std::string kind = CollectiveText(*move, mesh, direction);
      if (!kind.empty()) texts.push_back(kind);
    }
  }
  return Join(texts, ", ");
}

}  // namespace

Answer RunFlow(CommandCall& call) {
  if (std::optional<Answer> refused = NeedCompiled(call)) return *refused;
  if (call.arguments.empty()) return Refused(call, ":flow takes a layer: a number or a path", ":flow 0");
  const CompiledPlan& plan = *call.workspace.compiled();
  const std::optional<std::string> layer = LayerPath(*plan.tree, ReadPattern(call.arguments).text);
  if (!layer) return Refused(call, "the model has no layer '" + call.arguments + "'");
  // Modules that differ only in numbers (experts) are one line.
  struct Entry {
    std::vector<std::string> paths;
    uint32_t steps = 0;
    int place = 0;
  };
  std::map<std::pair<uint32_t, uint32_t>, size_t> numbers;
  std::vector<Entry> entries;
  for (size_t m = 0; m < plan.tree->modules().size(); ++m) {
    const Module& module = plan.tree->modules()[m];
    if (module.path != *layer && !module.path.starts_with(*layer + ".")) continue;
    const ModuleSteps& steps = plan.StepsOf(m);
    if (steps.style.empty() && plan.tree->parameters(module).empty()) continue;
    const std::string below = module.path == *layer ? "" : module.path.substr(layer->size() + 1);
    const auto [entry, fresh] = numbers.try_emplace({module.path_class, plan.steps_of[m]}, entries.size());
    if (fresh) entries.push_back({{}, plan.steps_of[m], UsualPlace(below)});
    entries[entry->second].paths.push_back(below.empty() ? "(the layer)" : below);
  }
  std::ranges::stable_sort(entries, {}, &Entry::place);
  Table table("flow of " + *layer, {"module", "style", "arrives", "used as", "makes", "leaves", "forward", "backward"});
  for (const Entry& entry : entries) {
    const ModuleSteps& steps = plan.steps[entry.steps];
    table.rows.push_back({FoldPaths(entry.paths), steps.style.empty() ? "-" : steps.style, Side(steps.inputs, true),
                          Side(steps.inputs, false), Side(steps.outputs, true), Side(steps.outputs, false),
                          Collectives(steps, plan.mesh, Direction::kForward),
                          Collectives(steps, plan.mesh, Direction::kBackward)});
  }
  Answer out;
  out.tables.push_back(std::move(table));
  out.notes.push_back("layer " + *layer +
                      ", in the order in which decoders usually call; siblings share one move of one tensor");
  return out;
}

Answer RunCost(CommandCall& call) {
  if (std::optional<Answer> refused = NeedCompiled(call)) return *refused;
  const CompiledPlan& plan = *call.workspace.compiled();
  const int64_t rank = call.workspace.rank();
  PlanTotals totals = call.workspace.totals();
  if (!call.arguments.empty()) {
    const Result<std::pair<int64_t, int64_t>> tokens = ParseTokens(call.arguments);
    if (!tokens.ok()) return {.diagnostics = AtLine(call, tokens.diagnostics())};
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
    uint32_t steps = 0;
    int64_t whole = 0;
    int64_t held = 0;
  };
  std::map<std::pair<uint32_t, uint32_t>, size_t> numbers;
  std::vector<Entry> entries;
  for (size_t m = 0; m < plan.tree->modules().size(); ++m) {
    const Module& module = plan.tree->modules()[m];
    const ModuleTree::Signature& signature = plan.tree->parameters(module);
    if (signature.empty()) continue;
    const auto [found, fresh] = numbers.try_emplace({module.path_class, plan.steps_of[m]}, entries.size());
    if (fresh) entries.push_back({{}, plan.steps_of[m]});
    Entry& entry = entries[found->second];
    entry.paths.push_back(module.path);
    for (size_t p = 0; p < signature.size(); ++p) {
      int64_t local = 1;
      for (int64_t size : LocalShape(signature[p].shape, plan.StepsOf(m).params[p], plan.mesh, rank)) local *= size;
      entry.held += BytesOf(signature[p].dtype, local);
      entry.whole += BytesOf(signature[p].dtype, signature[p].elements());
    }
  }
  std::ranges::stable_sort(entries, std::greater(), &Entry::held);
  Table modules("modules", {"path", "modules", "whole", "on this rank", "forward", "backward"});
  modules.byte_columns = {"whole", "on this rank"};
  for (const Entry& entry : entries) {
    const ModuleSteps& steps = plan.steps[entry.steps];
    modules.rows.push_back({FoldPaths(entry.paths), entry.paths.size(), entry.whole, entry.held,
                            Collectives(steps, plan.mesh, Direction::kForward),
                            Collectives(steps, plan.mesh, Direction::kBackward)});
  }
  return {.tables = {std::move(sum), std::move(collectives), std::move(modules)}};
}

}  // namespace moonshard
