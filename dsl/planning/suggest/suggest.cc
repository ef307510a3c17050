// A plan from evidence: names, shapes and the numbers of config.json. The stages are
//
//   outline    groups modules into stacks, layers and kinds of layers (outline.h)
//   readers    split one layer of each kind into blocks: attention, experts, feed-forward, norms (layer.h)
//   ends       the embedding, the last norm and the head, outside of the stacks (ends.h)
//   this file  decides what depends on several blocks: shared tensors, sequence parallelism, units of fsdp
//   write      blocks as Lua, with the reason of each as a comment (write.h)
//
// The rule for doubt is the same in all stages: what is not fully understood stays replicated, which costs memory but
// cannot change a result. A wrong shard can. So a block is sharded only if each of its modules is explained.
#include "dsl/planning/suggest/suggest.h"

#include <algorithm>
#include <map>

#include "dsl/planning/suggest/layer.h"
#include "dsl/planning/suggest/write.h"

namespace moonshard {
namespace {

// Features of the hidden states: from the config, or the size that most norms of the largest stack have.
int64_t HiddenOf(const Outline& outline, const ModelNumbers& numbers) {
  if (numbers.hidden.known()) return numbers.hidden.value;
  std::map<int64_t, int64_t> votes;
  for (const Stack& stack : outline.stacks) {
    if (IsOtherSense(stack.path)) continue;
    for (const LayerKind& kind : stack.kinds) {
      for (const Item& item : kind.items) {
        if (item.VectorSize() > 0 && IsNormName(item.name))
          votes[item.VectorSize()] += static_cast<int64_t>(kind.layers.size());
      }
    }
    if (!votes.empty()) break;
  }
  const auto most = std::ranges::max_element(votes, {}, [](const auto& vote) { return vote.second; });
  return most == votes.end() ? 0 : most->first;
}

bool Cuts(const ReadStack& read) {
  return std::ranges::any_of(
      read.rows, [](const ReadStack::Row& row) { return !row.block.unknown && row.block.decisions.size() > 1; });
}

void AddRow(ReadStack& read, Block block, const std::vector<int64_t>& layers) {
  const auto same = std::ranges::find(read.rows, block, &ReadStack::Row::block);
  ReadStack::Row& row = same == read.rows.end() ? read.rows.emplace_back(ReadStack::Row{std::move(block), {}}) : *same;
  row.layers.insert(layers.begin(), layers.end());
}

// Reads all kinds twice: the first pass only finds the attention that must stay replicated in all layers, and the
// second one reads with that knowledge. Reading has no effect on the layer kinds, so the passes are independent.
ReadStack ReadLayers(const Stack& stack, const ModelNumbers& numbers, int64_t hidden, bool turned) {
  // Other layers may use what one layer computes for its heads, as in T5, where all layers use the bias of the first:
  // if attention stays replicated in one layer because of another module in it, it does in all.
  std::map<std::string, std::string> full;
  for (const LayerKind& kind : stack.kinds) {
    for (const Block& block : Layer(kind, numbers, hidden, turned).Read()) {
      if (block.unknown && !block.heads_of.empty())
        full.emplace(block.heads_of, block.why + "; and one layer may use what another makes");
    }
  }
  ReadStack read{&stack, {}, {}};
  for (const LayerKind& kind : stack.kinds) {
    for (Block& block : Layer(kind, numbers, hidden, turned, full).Read()) {
      AddRow(read, std::move(block), kind.layers);
    }
  }
  return read;
}

// The layers that share no tensor with what is outside of them.
std::set<int64_t> UnitsOf(const Stack& stack, const ModuleTree& tree) {
  std::set<int64_t> units;
  for (const LayerKind& kind : stack.kinds) units.insert(kind.layers.begin(), kind.layers.end());
  std::erase_if(units, [&](int64_t layer) {
    const std::string path = (stack.path.empty() ? "" : stack.path + ".") + std::to_string(layer);
    return std::ranges::any_of(tree.ties(), [&](const std::vector<ParamRef>& tie) {
      const auto inside = [&](ParamRef param) { return IsUnder(tree.modules()[param.module].path, path); };
      return std::ranges::any_of(tie, inside) && !std::ranges::all_of(tie, inside);
    });
  });
  return units;
}

// Sequence parallelism replaces the layout of the hidden states between all blocks, so one module that reads them in an
// unknown way makes it wrong: a module that expects all tokens has only a part of them. It is offered only if
// everything is understood: one stack, no unknown block, no unknown module outside, and one embedding where the shards
// of the sequence begin.
std::string WhyNoSequence(const Draft& draft) {
  if (draft.stacks.size() != 1) return draft.stacks.empty() ? "" : "there is more than one stack of layers";
  for (const ReadStack::Row& row : draft.stacks.front().rows) {
    if (row.block.unknown) return "not everything in a layer is understood";
  }
  if (!draft.rest.empty() || !draft.ends.rest.empty()) {
    const std::string& first = (draft.ends.rest.empty() ? draft.rest : draft.ends.rest).front();
    return (first.empty() ? "the use of the model's own parameters is unknown"
                          : "the use of " + first + " is unknown") +
           " with the sequence";
  }
  if (draft.ends.first.size() != 1) return "there is no one embedding that the layers start from";
  return "";
}

// A tensor that two modules share has one layout: if one of them stays replicated, so does the other.
void DropHalfTies(const ModuleTree& tree, Draft& draft) {
  for (const std::vector<ParamRef>& tie : tree.ties()) {
    std::vector<std::string> cut;
    for (std::vector<Block>* blocks : {&draft.ends.first, &draft.ends.last}) {
      for (const Block& block : *blocks) {
        const std::string& name = block.decisions.front().names.front();
        const auto is_it = [&](ParamRef param) { return tree.modules()[param.module].path == name; };
        if (std::ranges::any_of(tie, is_it)) cut.push_back(name);
      }
    }
    if (cut.empty() || cut.size() == tie.size()) continue;
    for (std::vector<Block>* blocks : {&draft.ends.first, &draft.ends.last}) {
      std::erase_if(*blocks, [&](const Block& block) {
        return std::ranges::find(cut, block.decisions.front().names.front()) != cut.end();
      });
    }
    draft.ends.rest.insert(draft.ends.rest.end(), cut.begin(), cut.end());
  }
}

// Modules outside of the stacks that need a rule of their own, because a sibling is sharded: beside sharded modules the
// plan's default does not claim a parameter without an error. The others are left to that default. `own`: names of the
// parameters that the model itself owns.
void SplitRest(Draft& draft, const std::vector<std::string>& own) {
  std::vector<std::string> beside;
  for (const std::string& path : draft.ends.rest) {
    const bool near = std::ranges::any_of(draft.ends.first,
                                          [&](const Block& block) {
                                            return ParentOf(block.decisions.front().names.front()) == ParentOf(path);
                                          }) ||
                      std::ranges::any_of(draft.ends.last, [&](const Block& block) {
                        return ParentOf(block.decisions.front().names.front()) == ParentOf(path);
                      });
    (near ? beside : draft.rest).push_back(path);
  }
  draft.ends.rest = beside;
  if (beside.empty()) return;
  Block block;
  // The model itself has no path: its parameters have.
  const bool itself = std::erase(beside, "") > 0;
  if (itself) block.decisions.push_back(Decide(Part::kFullParameter, own));
  if (!beside.empty()) block.decisions.push_back(Decide(Part::kFull, beside));
  block.unknown = true;
  block.why = "not recognized";
  draft.ends.first.push_back(std::move(block));
}

}  // namespace

Suggestion SuggestPlan(const ModuleTree& tree, const ModelConfig& config) {
  Draft draft;
  draft.numbers = ReadNumbers(config);
  draft.model = config.architecture().empty() ? "a model of unknown class" : config.architecture();
  const Outline outline = MakeOutline(tree, draft.numbers.experts.value);
  const int64_t hidden = HiddenOf(outline, draft.numbers);
  for (const Stack& stack : outline.stacks) {
    ReadStack read;
    if (!IsOtherSense(stack.path)) read = ReadLayers(stack, draft.numbers, hidden, outline.turned);
    if (Cuts(read)) {
      read.units = UnitsOf(stack, tree);
      draft.stacks.push_back(std::move(read));
    } else {
      for (const auto& [name, layers] : stack.layers_of) {
        draft.rest.push_back(stack.path + ".*" + (name.empty() ? "" : "." + name));
      }
    }
  }
  std::vector<std::string> paths;
  for (const ReadStack& read : draft.stacks) paths.push_back(read.stack->path);
  draft.ends = ReadEnds(outline, draft.numbers, hidden, paths);
  DropHalfTies(tree, draft);
  std::string why_not = WhyNoSequence(draft);
  draft.sequence = why_not.empty() && !draft.stacks.empty();
  draft.no_sequence = std::move(why_not);
  std::vector<std::string> own;
  for (const Item& item : outline.outside) {
    for (const Parameter& p : *item.parameters) {
      if (item.name.empty()) own.push_back(p.name);
    }
  }
  SplitRest(draft, own);
  Suggestion out;
  const auto count = [&](const Block& block) { ++(block.unknown ? out.full : block.sure ? out.sure : out.guesses); };
  std::ranges::for_each(draft.ends.first, count);
  for (const ReadStack& read : draft.stacks) std::ranges::for_each(read.rows, count, &ReadStack::Row::block);
  std::ranges::for_each(draft.ends.last, count);
  out.text = WritePlan(draft);
  return out;
}

}  // namespace moonshard
