// Sequence parallelism replaces the layout of the hidden states between all blocks of a layer, so one module that reads
// them in an unknown way makes it wrong: a module that expects all tokens has only a part of them. There are three ways
// to offer it, and each needs more evidence than the next one.
//
//   from the embedding to the head  everything is understood: one stack, no unknown block, no unknown module outside,
//                                   one embedding where the shards begin, and a head where they end: without one, the
//                                   output of the model would be a rank's own tokens
//   within a stack                  everything in its layers is. The first layer takes shards of its input, and the
//                                   output of the last one is gathered, so what lies outside has all tokens
//   within a stack, with blocks     what is not understood of a layer, or mixes tokens, lies in whole blocks, such as
//   that get all tokens             its mixer, between the norm and the residual stream: their inputs are gathered, and
//                                   of their outputs each rank takes its shard
//
// The last two need layers that follow each other with nothing between them. That is so for all models that are known
// but those that add features of images to the hidden states after some layers, which call it deepstack, and those that
// call layers of cross-attention, which are a list of their own, between the layers (Idefics, BLT). Modules that are
// not layers, such as the attention of all layers in a list of its own, have no residual stream in them. Layers
// that summarize the features of images (a perceiver, a Q-Former) take these, which are no shards, beside the hidden
// states.
#include "dsl/planning/suggest/sequence.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "dsl/planning/suggest/words.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

// Whether a module of a layer is called so because it takes the hidden states and gives as many back.
bool IsBlockName(const std::string& name) {
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::array kWords = {"attn",        "attention", "mlp",   "ffn",  "feed_forward",
                                 "feedforward", "moe",       "mamba", "mixer"};
  return lower == "ff" || lower == "att" || lower == "conv" || lower == "ssm" ||
         std::ranges::any_of(kWords, [&](const char* word) { return lower.find(word) != std::string::npos; });
}

bool Overlap(const std::set<int64_t>& a, const std::set<int64_t>& b) {
  return std::ranges::any_of(a, [&](int64_t layer) { return b.contains(layer); });
}

std::string CalledInLayer(const std::string& name) { return name.empty() ? "the layer's own parameters" : name; }

// Whether a module of a layer has others in it.
bool HoldsModules(const Stack& stack, const std::string& name) {
  return std::ranges::any_of(stack.layers_of,
                             [&](const auto& entry) { return entry.first != name && IsUnder(entry.first, name); });
}

// The module of a layer that has the module `name` in it: of a list of modules that hold others, one of these, since
// such a list is not called; of a torch.nn.Sequential of single layers, the sequence.
std::string TopOf(const Stack& stack, const std::string& name) {
  const size_t dot = name.find('.');
  size_t end = dot;
  while (end != std::string::npos && end + 1 < name.size() && name[end + 1] >= '0' && name[end + 1] <= '9')
    end = name.find('.', end + 1);
  return name.substr(0, HoldsModules(stack, name.substr(0, end)) ? end : dot);
}

// Whether a module of a layer, or one of its parameters by its path, is a bias of hidden states without a weight: a
// block may give it to the layer to add, as `dense_bias` of GPT-NeoX Japanese, so it is not used on all tokens.
bool OwnsBias(const ReadStack& read, const std::string& name, int64_t hidden) {
  for (const LayerKind& kind : read.stack->kinds) {
    for (const Item& item : kind.items) {
      for (const Parameter& p : *item.parameters) {
        if (item.name != name && item.name + "." + p.name != name) continue;
        const bool alone = std::ranges::find(*item.parameters, "weight", &Parameter::name) == item.parameters->end();
        if (alone && p.name.ends_with("bias") && p.shape == std::vector<int64_t>{hidden}) return true;
      }
    }
  }
  return false;
}

// The blocks that must get all tokens for the unknown rows, or why that is not enough.
std::string FindGathered(const ReadStack& read, int64_t hidden, std::map<std::string, std::set<int64_t>>& blocks) {
  const auto needs_all = [](const Block& block) { return block.unknown || MixesTokens(block); };
  for (const ReadStack::Row& row : read.rows) {
    if (!needs_all(row.block)) continue;
    for (const Decision& decision : row.block.decisions) {
      for (const std::string& name : decision.names) {
        const std::string top = TopOf(*read.stack, name);
        if (!HoldsModules(*read.stack, top) || !IsBlockName(top))
          return "the use of " + CalledInLayer(name) + " in a layer is unknown";
        if (OwnsBias(read, name, hidden)) return "the use of the bias of " + top + " in a layer is unknown";
        blocks[top].insert(row.layers.begin(), row.layers.end());
      }
    }
  }
  for (const ReadStack::Row& row : read.rows) {
    if (needs_all(row.block)) continue;
    for (const Decision& decision : row.block.decisions) {
      for (const std::string& name : decision.names) {
        const auto within = blocks.find(TopOf(*read.stack, name));
        if (within != blocks.end() && Overlap(within->second, row.layers))
          return within->first + " has modules that are not understood";
      }
    }
  }
  return "";
}

// Whether every layer has a norm, or more than one block: what has neither is a part of a layer.
bool HasWholeLayers(const ReadStack& read) {
  for (const LayerKind& kind : read.stack->kinds) {
    for (const int64_t layer : kind.layers) {
      int64_t parts = 0;
      for (const ReadStack::Row& row : read.rows) {
        if (!row.layers.contains(layer)) continue;
        parts += row.block.decisions.front().part == Part::kNorm ? 2 : 1;
      }
      if (parts < 2) return false;
    }
  }
  return true;
}

// Sets `sequence` and `gathered`, or tells why not.
std::string OfferWithin(ReadStack& read, int64_t hidden) {
  read.sequence = false;
  read.gathered.clear();
  if (!HasWholeLayers(read)) return "a layer has no norm and only one block, so this list does not contain full layers";
  std::map<std::string, std::set<int64_t>> blocks;
  if (std::string why = FindGathered(read, hidden, blocks); !why.empty()) return why;
  for (auto& [block, layers] : blocks) read.gathered.push_back({block, std::move(layers)});
  read.sequence = true;
  return "";
}

// Whether the shards can begin at the embedding and end at the head.
bool IsUnderstood(const Draft& draft) {
  if (draft.stacks.size() != 1 || !draft.rest.empty() || !draft.ends.rest.empty()) return false;
  const bool known = std::ranges::none_of(draft.stacks.front().rows,
                                          [](const auto& row) { return row.block.unknown || MixesTokens(row.block); });
  return known && draft.ends.first.size() == 1 && !draft.ends.first.front().unknown &&
         std::ranges::none_of(draft.ends.last, &Block::unknown) && HasHead(draft);
}

bool Summarizes(const std::string& path) {
  return std::ranges::any_of(std::array{"perceiver", "resampler", "qformer"},
                             [&](const char* word) { return path.find(word) != std::string::npos; });
}

bool AddsBetweenLayers(const Outline& outline) {
  const auto says = [](const std::string& path) { return path.find("deepstack") != std::string::npos; };
  return std::ranges::any_of(outline.outside, says, &Item::name) ||
         std::ranges::any_of(outline.stacks, says, &Stack::path);
}

bool IsCrossList(const std::string& path) {
  return path.substr(path.rfind('.') + 1).find("cross") != std::string::npos;
}

// Whether the stack or one beside it is a list of layers of cross-attention.
bool AttendsBetweenLayers(const Outline& outline, const std::string& path) {
  return std::ranges::any_of(outline.stacks, [&](const Stack& other) {
    return ParentOf(other.path) == ParentOf(path) && IsCrossList(other.path);
  });
}

// Whether the stack is of a tower of images that has another name: within a module around it is a convolution of three
// colours, and no embedding of tokens. The hidden states of such layers may be [batch, height, width, features], which
// some split into windows before their attention (SAM).
bool IsOfPixels(const Outline& outline, const Draft& draft, const std::string& path) {
  for (std::string around(ParentOf(path)); !around.empty(); around = std::string(ParentOf(around))) {
    const bool embeds = std::ranges::any_of(draft.ends.first, [&](const Block& block) {
      const Decision& first = block.decisions.front();
      return (first.part == Part::kEmbedding || first.part == Part::kTable) && IsUnder(first.names.front(), around);
    });
    if (embeds) return false;
    const auto takes_colours = [](const Parameter& p) { return p.shape.size() >= 4 && p.shape[1] == 3; };
    if (std::ranges::any_of(outline.outside, [&](const Item& item) {
          return IsUnder(item.name, around) && !IsOtherSense(item.name) &&
                 std::ranges::any_of(*item.parameters, takes_colours);
        }))
      return true;
  }
  return false;
}

}  // namespace

bool HasHead(const Draft& draft) {
  return std::ranges::any_of(draft.ends.last, [](const Block& block) {
    return !block.unknown && block.decisions.front().part == Part::kHead;
  });
}

void OfferSequence(const Outline& outline, Draft& draft) {
  draft.no_sequence.clear();
  draft.sequence = !draft.stacks.empty() && IsUnderstood(draft);
  if (draft.sequence) return;
  bool any = false;
  for (ReadStack& read : draft.stacks) {
    read.sequence = false;
    const std::string& path = read.stack->path;
    if (IsOtherSense(path) || Summarizes(path) || IsOfPixels(outline, draft, path)) continue;
    const std::string why = AddsBetweenLayers(outline) ? "image features are added between the layers"
                            : AttendsBetweenLayers(outline, path)
                                ? "layers of cross-attention may be called between the layers"
                                : OfferWithin(read, draft.numbers.hidden.value);
    any |= read.sequence;
    if (!why.empty() && draft.no_sequence.empty()) draft.no_sequence = path + ": " + why;
  }
  if (!any && draft.no_sequence.empty())
    draft.no_sequence = "no list of layers is known to be that of a decoder of tokens";
  if (any) draft.no_sequence.clear();
}

bool OffersSequence(const Draft& draft) {
  return draft.sequence || std::ranges::any_of(draft.stacks, &ReadStack::sequence);
}

void TakeSequence(const std::string& why, Draft& draft) {
  draft.sequence = false;
  for (ReadStack& read : draft.stacks) {
    read.sequence = false;
    read.gathered.clear();
  }
  draft.no_sequence = why;
}

}  // namespace moonshard
