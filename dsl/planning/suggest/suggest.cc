// A plan from evidence: names, shapes and the numbers of config.json. The stages are
//
//   outline    groups modules into stacks, layers and kinds of layers (outline.h)
//   readers    split one layer of each kind into blocks: attention, experts, feed-forward, norms (layer.h)
//   ends       the embedding, the last norm and the head, outside of the stacks (ends.h)
//   rows       shards linear layers whose use is not understood, tables, convolutions; gathers their outputs (rows.h)
//   sequence   decides in which stacks the hidden states may be shards of the sequence (sequence.h)
//   context    decides whether the sequence is sharded on cp, too, and by which attention (context.h)
//   this file  decides what depends on several blocks: shared tensors, units of fsdp
//   write      blocks as Lua, with the reason of each as a comment (write.h)
//
// The rule for doubt is the same in all stages: what is not fully understood gives all its outputs on every rank, which
// costs time but cannot change a result. A wrong shard can. So the features of a block are sharded only if each of its
// modules is explained.
#include "dsl/planning/suggest/suggest.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>

#include "dsl/planning/suggest/context.h"
#include "dsl/planning/suggest/layer.h"
#include "dsl/planning/suggest/rows.h"
#include "dsl/planning/suggest/sequence.h"
#include "dsl/planning/suggest/write.h"
#include "engine/core/base/quoted.h"
#include "engine/core/base/text.h"

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

// Norms are one decision, and what is sharded are several, or experts.
bool Cuts(const ReadStack& read) {
  return std::ranges::any_of(read.rows, [](const ReadStack::Row& row) {
    return !row.block.unknown && (row.block.decisions.size() > 1 || row.block.decisions.front().part == Part::kExperts);
  });
}

void AddRow(ReadStack& read, Block block, const std::vector<int64_t>& layers) {
  const auto same = std::ranges::find(read.rows, block, &ReadStack::Row::block);
  ReadStack::Row& row = same == read.rows.end() ? read.rows.emplace_back(ReadStack::Row{std::move(block), {}}) : *same;
  row.layers.insert(layers.begin(), layers.end());
}

// Its modules stay replicated. `stack` and `layers`: where it is; null outside of the stacks.
void LeaveWhole(Block& block, const Stack* stack, const std::set<int64_t>& layers, const std::string& why) {
  std::vector<std::string> modules;
  std::vector<std::string> parameters;
  for (const Decision& decision : block.decisions) {
    const bool is_parameter = decision.part == Part::kPerHead || decision.part == Part::kPerToken ||
                              decision.part == Part::kPerChannel || decision.part == Part::kFullParameter;
    std::vector<std::string>& names = is_parameter ? parameters : modules;
    if (decision.part != Part::kExperts) {
      names.insert(names.end(), decision.names.begin(), decision.names.end());
      continue;
    }
    for (const auto& [name, all] : stack->layers_of) {
      if (IsUnder(name, decision.names.front()) && std::ranges::includes(all, layers)) modules.push_back(name);
    }
  }
  block = Block();
  if (!modules.empty()) block.decisions.push_back(Decide(Part::kFull, std::move(modules)));
  if (!parameters.empty()) block.decisions.push_back(Decide(Part::kFullParameter, std::move(parameters)));
  block.unknown = true;
  block.why = why;
}

// A guess where only what is sure is sharded.
bool IsDoubtful(const Block& block, Certainty least) {
  return least == Certainty::kSure && !block.unknown && !block.sure;
}

void LeaveDoubtful(Block& block, const Stack* stack, const std::set<int64_t>& layers, Certainty least) {
  if (IsDoubtful(block, least)) LeaveWhole(block, stack, layers, "a guess: " + block.why);
}

// Reads all kinds twice: the first pass only finds the attention that must stay replicated in all layers, and the
// second one reads with that knowledge. Reading has no effect on the layer kinds, so the passes are independent.
ReadStack ReadLayers(const Stack& stack, const ModelNumbers& numbers, int64_t hidden, bool turned,
                     const std::shared_ptr<const DataFlow>& flow, Certainty least) {
  const auto flow_of = [&](const LayerKind& kind) {
    return LayerFlow{flow, (stack.path.empty() ? "" : stack.path + ".") + std::to_string(kind.layers.front())};
  };
  // Other layers may use what one layer computes for its heads, as in T5, where all layers use the bias of the first:
  // if attention stays replicated in one layer because of another module in it, it does in all.
  std::map<std::string, std::string> full;
  for (const LayerKind& kind : stack.kinds) {
    for (const Block& block : Layer(kind, numbers, hidden, turned, flow_of(kind)).Read()) {
      const bool doubtful = IsDoubtful(block, least);
      if ((block.unknown || doubtful) && !block.heads_of.empty())
        full.emplace(block.heads_of,
                     (doubtful ? "a guess: " : "") + block.why +
                         "; other layers may use the output of this module, so attention is replicated in all layers");
    }
  }
  ReadStack read;
  read.stack = &stack;
  for (const LayerKind& kind : stack.kinds) {
    for (Block& block : Layer(kind, numbers, hidden, turned, flow_of(kind), full).Read()) {
      AddRow(read, std::move(block), kind.layers);
    }
  }
  return read;
}

// Layers of which not even the sizes are known.
ReadStack LeftStack(const Stack& stack) {
  ReadStack read;
  read.stack = &stack;
  for (const LayerKind& kind : stack.kinds) {
    Block block;
    std::vector<std::string> names;
    for (const Item& item : kind.items) names.push_back(item.name);
    block.decisions.push_back(Decide(Part::kFull, std::move(names)));
    block.unknown = true;
    block.why = "config.json has no number of heads or no hidden size for these layers";
    AddRow(read, std::move(block), kind.layers);
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

std::string NameOf(const ModuleTree& tree, ParamRef param) {
  const Module& module = tree.modules()[param.module];
  const std::string& name = tree.parameters(module)[param.param].name;
  return module.path.empty() ? name : module.path + "." + name;
}

bool IsCutEnd(const Block& block) {
  const Part part = block.decisions.front().part;
  return !block.unknown && (part == Part::kEmbedding || part == Part::kHead);
}

Block* CutEndOf(Draft& draft, const std::string& module) {
  for (std::vector<Block>* blocks : {&draft.ends.first, &draft.ends.last}) {
    for (Block& block : *blocks) {
      if (IsCutEnd(block) && block.decisions.front().names.front() == module) return &block;
    }
  }
  return nullptr;
}

// The bias of a head may be a parameter of the module around it, too: BERT's `cls.predictions.bias` is the bias of
// `cls.predictions.decoder`. It is sharded with the head if that module owns nothing else, which would need a rule.
bool TakeTiedBias(const ModuleTree& tree, const std::vector<ParamRef>& tie, Draft& draft) {
  Block* head = nullptr;
  std::vector<ParamRef> others;
  for (const ParamRef param : tie) {
    const Module& module = tree.modules()[param.module];
    Block* cut = CutEndOf(draft, module.path);
    if (cut == nullptr) {
      if (tree.parameters(module).size() != 1) return false;
      others.push_back(param);
    } else if (cut->decisions.front().part != Part::kHead || tree.parameters(module)[param.param].name != "bias") {
      return false;
    } else {
      head = cut;
    }
  }
  if (head == nullptr) return false;
  std::vector<std::string> names;
  for (const ParamRef param : others) {
    std::erase(draft.ends.rest, tree.modules()[param.module].path);
    names.push_back(NameOf(tree, param));
  }
  head->why += "; " + Join(names, ", ") + (names.size() == 1 ? " is the bias" : " are biases") + " of the head";
  head->decisions.push_back(Decide(Part::kPerToken, std::move(names)));
  return true;
}

// The parameters of an embedding beside its weight, if each is the embedding of one token: T5Gemma 2 replaces the rows
// of an id by `eoi_embedding`. nullopt for other modules.
std::optional<std::vector<std::string>> TokensOf(const ModuleTree& tree, const Module& module) {
  std::vector<std::string> tokens;
  int64_t features = 0;
  for (const Parameter& p : tree.parameters(module)) {
    if (p.is_buffer) continue;
    if (p.name == "weight" && p.shape.size() == 2) {
      features = p.shape[1];
    } else if (p.name.ends_with("_embedding") && p.shape.size() == 1) {
      tokens.push_back(p.name);
    } else {
      return std::nullopt;
    }
  }
  const bool fits = std::ranges::all_of(tree.parameters(module),
                                        [&](const Parameter& p) { return p.is_buffer || p.shape.back() == features; });
  return module.kind.ends_with("Embedding") && fits ? std::optional(tokens) : std::nullopt;
}

// An embedding that compares the ids with one of its own cannot look up ids that are local to a shard of the
// vocabulary. If it is tied to other embeddings and to a head, the features of all are sharded: every rank looks up all
// ids, and the head sums terms.
bool ShardFeatures(const ModuleTree& tree, const std::vector<ParamRef>& tie, Draft& draft) {
  constexpr int64_t kMultiple = 8;  // as in rows.cc
  std::vector<Block> blocks;
  for (const ParamRef param : tie) {
    const Module& module = tree.modules()[param.module];
    const std::vector<int64_t>& shape = tree.At(param).shape;
    if (shape.size() != 2 || shape[1] % kMultiple != 0 || draft.whole.contains(module.path)) return false;
    const Block* cut = CutEndOf(draft, module.path);
    const bool head = cut != nullptr && cut->decisions.front().part == Part::kHead;
    const std::optional<std::vector<std::string>> tokens = TokensOf(tree, module);
    if ((head && cut->decisions.size() > 1) || (!head && !tokens)) return false;
    Block& block = blocks.emplace_back();
    block.decisions.push_back(Decide(head ? Part::kFeatureHead : Part::kTable, {module.path}));
    std::vector<std::string> quoted;
    if (!head)
      std::ranges::transform(*tokens, std::back_inserter(quoted), [](const auto& name) { return Quoted(name); });
    if (!quoted.empty()) block.decisions.front().extra = "{ " + Join(quoted, ", ") + " }";
    block.unknown = true;
    block.why = head ? "the head, which has the weight of an embedding that is sharded by columns"
                     : "an embedding that compares the ids with some of its own, or has the weight of one that does";
  }
  const auto compares = [](const Block& block) { return !block.decisions.front().extra.empty(); };
  if (std::ranges::none_of(blocks, compares)) return false;
  for (const Block& block : blocks) {
    const std::string& path = block.decisions.front().names.front();
    std::erase(draft.ends.rest, path);
    for (std::vector<Block>* ends : {&draft.ends.first, &draft.ends.last}) {
      std::erase_if(*ends,
                    [&](const Block& end) { return IsCutEnd(end) && end.decisions.front().names.front() == path; });
    }
    const bool head = block.decisions.front().part == Part::kFeatureHead;
    (head ? draft.ends.last : draft.ends.first).push_back(block);
  }
  return true;
}

// A tensor that two modules share has one layout: if one of them stays replicated, so does the other. Which can be one
// side of another tie, so the search begins again after each that is dropped.
void SettleTies(const ModuleTree& tree, Draft& draft) {
  for (const std::vector<ParamRef>& tie : tree.ties()) {
    std::set<std::string> cut;
    for (const ParamRef param : tie) {
      const std::string& module = tree.modules()[param.module].path;
      if (CutEndOf(draft, module) != nullptr) cut.insert(module);
    }
    const auto is_cut = [&](ParamRef param) { return cut.contains(tree.modules()[param.module].path); };
    if (cut.empty() || std::ranges::all_of(tie, is_cut)) continue;
    const auto is_taken = [&](ParamRef param) {
      return is_cut(param) || std::ranges::any_of(draft.ends.last, [&](const Block& block) {
               return block.decisions.back().part == Part::kPerToken &&
                      std::ranges::find(block.decisions.back().names, NameOf(tree, param)) !=
                          block.decisions.back().names.end();
             });
    };
    if (std::ranges::all_of(tie, is_taken) || TakeTiedBias(tree, tie, draft) || ShardFeatures(tree, tie, draft))
      continue;
    for (std::vector<Block>* blocks : {&draft.ends.first, &draft.ends.last}) {
      std::erase_if(*blocks, [&](const Block& block) {
        if (!IsCutEnd(block) || !cut.contains(block.decisions.front().names.front())) return false;
        for (const std::string& name : block.decisions.back().names) {
          if (block.decisions.back().part == Part::kPerToken) draft.ends.rest.emplace_back(ParentOf(name));
        }
        return true;
      });
    }
    draft.ends.rest.insert(draft.ends.rest.end(), cut.begin(), cut.end());
    SettleTies(tree, draft);
    return;
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

// What depends on several blocks: shared tensors, the layout of the hidden states, and rules for what is beside sharded
// modules.
Draft Settled(const ModuleTree& tree, const Outline& outline, Draft draft) {
  SettleTies(tree, draft);
  draft.ends.has_logits = draft.ends.has_logits && std::ranges::any_of(draft.ends.last, [](const Block& block) {
                            return IsCutEnd(block) && block.decisions.front().part == Part::kHead;
                          });
  OfferSequence(outline, draft);
  ShardRows(tree, outline, draft);
  std::vector<std::string> own;
  for (const Item& item : outline.outside) {
    for (const Parameter& p : *item.parameters) {
      if (item.name.empty()) own.push_back(p.name);
    }
  }
  SplitRest(draft, own);
  return draft;
}

// For a comment, so without line ends.
std::string Reason(const Diagnostic& error) {
  std::string text = "the plan has the error " + std::string(InfoOf(error.finding).id) + ", " + error.message;
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

// Where the errors are: the blocks of `shown`, which is `draft` with its ties settled, on whose lines they stand, or
// all that are sharded where they stand on none of these. False: everything is replicated already.
bool LeaveRefused(const Diagnostics& errors, const WrittenPlan& written, const Draft& shown, Draft& draft) {
  std::map<const Block*, std::string> refused;
  bool fewer = false;
  const auto refuse = [&](const Diagnostic& error, bool all) {
    for (const BlockLines& lines : written.blocks) {
      const bool here =
          error.where.file == kSuggestedFile && lines.first <= error.where.line && error.where.line <= lines.last;
      if (!here && !all) continue;
      if (!lines.block->unknown) refused.emplace(lines.block, "if sharded, " + Reason(error));
      for (const Decision& decision : lines.block->decisions) {
        if (!IsGathered(decision.part)) continue;
        for (const std::string& name : decision.names) fewer |= draft.whole.insert(PathIn(lines.stack, name)).second;
      }
    }
  };
  for (const Diagnostic& error : errors) refuse(error, false);
  if (refused.empty() && !fewer) refuse(errors.front(), true);
  for (size_t i = 0; i < shown.stacks.size(); ++i) {
    for (size_t row = 0; row < shown.stacks[i].rows.size(); ++row) {
      const auto found = refused.find(&shown.stacks[i].rows[row].block);
      ReadStack::Row& refused_row = draft.stacks[i].rows[row];
      if (found != refused.end())
        LeaveWhole(refused_row.block, draft.stacks[i].stack, refused_row.layers, found->second);
    }
  }
  for (const auto& [block, why] : refused) {
    for (std::vector<Block>* blocks : {&draft.ends.first, &draft.ends.last}) {
      for (Block& one : *blocks) {
        if (one.decisions.front() == block->decisions.front()) LeaveWhole(one, nullptr, {}, why);
      }
    }
  }
  return fewer || !refused.empty();
}

}  // namespace

Suggestion SuggestPlan(const ModuleTree& tree, const ModelConfig& config, const FindErrors& errors_of, Certainty least,
                       const ContextRequest& context) {
  Draft draft;
  draft.only_sure = least == Certainty::kSure;
  draft.numbers = ReadNumbers(config);
  draft.types = ReadTypes(config);
  draft.model = config.architecture().empty() ? "a model of unknown class" : config.architecture();
  const Outline outline = MakeOutline(tree, draft.numbers.experts.value);
  const int64_t hidden = HiddenOf(outline, draft.numbers);
  // The heads of the config are the decoder's, and any of several stacks may be the decoder.
  const bool several = std::ranges::count_if(outline.stacks, [&](const Stack& stack) {
                         return !IsOtherSense(stack.path) && !ReadNumbersOfStack(config, stack.path);
                       }) > 1;
  for (const Stack& stack : outline.stacks) {
    ReadStack read;
    if (!IsOtherSense(stack.path)) {
      const std::optional<ModelNumbers> own = ReadNumbersOfStack(config, stack.path);
      ModelNumbers numbers = own ? *own : draft.numbers;
      numbers.borrowed = !own && several;
      const int64_t features = own && own->hidden.known() ? own->hidden.value : hidden;
      read = ReadLayers(stack, numbers, features, outline.turned, tree.flow(), least);
    } else if (const std::optional<ModelNumbers> tower = ReadTowerNumbers(config, IsHearing(stack.path))) {
      read = ReadLayers(stack, *tower, tower->hidden.value, outline.turned, tree.flow(), least);
    }
    if (read.stack == nullptr) read = LeftStack(stack);
    if (Cuts(read) || HasRows(tree, outline, read)) {
      for (ReadStack::Row& row : read.rows) LeaveDoubtful(row.block, &stack, row.layers, least);
      read.units = UnitsOf(stack, tree);
      draft.stacks.push_back(std::move(read));
    } else {
      for (const auto& [name, layers] : stack.layers_of) {
        draft.rest.push_back(stack.path + ".*" + (name.empty() ? "" : "." + name));
      }
    }
  }
  std::vector<std::string> paths;
  for (const ReadStack& read : draft.stacks) {
    if (!IsOtherSense(read.stack->path)) paths.push_back(read.stack->path);
  }
  draft.ends = ReadEnds(outline, draft.numbers, hidden, paths);
  for (std::vector<Block>* blocks : {&draft.ends.first, &draft.ends.last}) {
    for (Block& block : *blocks) LeaveDoubtful(block, nullptr, {}, least);
  }
  Draft shown = Settled(tree, outline, draft);
  WrittenPlan written = WritePlan(shown);
  if (errors_of != nullptr) {
    for (Diagnostics errors = errors_of(written.text, false); !errors.empty();
         errors = errors_of(written.text, false)) {
      if (!LeaveRefused(errors, written, shown, draft)) break;
      shown = Settled(tree, outline, draft);
      written = WritePlan(shown);
    }
    if (const Diagnostics errors = OffersSequence(shown) ? errors_of(written.text, true) : Diagnostics();
        !errors.empty()) {
      TakeSequence("with it, " + Reason(errors.front()), shown);
      written = WritePlan(shown);
    }
  }
  if (context.sent) {
    OfferContext(context, shown);
    written = WritePlan(shown);
  }
  Suggestion out;
  const auto count = [&](const Block& block) { ++(block.unknown ? out.full : block.sure ? out.sure : out.guesses); };
  std::ranges::for_each(shown.ends.first, count);
  for (const ReadStack& read : shown.stacks) std::ranges::for_each(read.rows, count, &ReadStack::Row::block);
  std::ranges::for_each(shown.ends.last, count);
  out.text = std::move(written.text);
  out.no_sequence = shown.no_sequence;
  out.context = shown.context;
  out.no_context = shown.no_context;
  return out;
}

}  // namespace moonshard
