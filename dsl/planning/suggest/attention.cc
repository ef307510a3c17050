// Recognition of attention: query, key and value projections, sharded between heads, and the output projection.
//
// The search goes from certain to uncertain evidence. A module that is named "query", "key", "value", "out" or
// "fused" is taken as such if its shape agrees with the heads of config.json; unnamed projections are then assigned by
// shape: hidden -> heads * head_dim enters, the reverse leaves. With names, shapes and config in agreement the block is
// sure; if the shapes alone decide (two square matrices in one direction are ambiguous), it is a guess. Every other
// module of the directory must be explained too (norms on heads, biases per head, rotary tables): one unexplained
// module with parameters keeps the block replicated, since it could mix heads.
#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "dsl/planning/suggest/layer.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

struct FoundAttention {
  std::string folder;
  std::vector<LayerLinear> in;  // query, key, value, or what fuses them
  std::vector<LayerLinear> out;
  std::vector<size_t> norms;          // of single heads
  std::vector<LayerLinear> gates;     // of the features of all heads, from the hidden states
  std::vector<std::string> per_head;  // paths of parameters with a number for each head
  std::vector<size_t> biases;         // tables with a column for each head: of distances, mostly
  bool by_shape = false;
};

// The number in the config, or the literal if the shapes have another one.
Number Agreed(const Number& from_config, int64_t value) {
  return from_config.value == value ? from_config : Literal(value);
}

std::string HeadsText(int64_t heads, int64_t head_dim) {
  return std::to_string(heads) + " heads of " + std::to_string(head_dim) + " features";
}

const LayerLinear* Find(const FoundAttention& found, Word word) {
  const auto it = std::ranges::find(found.in, word, [](const LayerLinear& linear) { return linear.named.word; });
  return it == found.in.end() ? nullptr : &*it;
}

// Projections out of the hidden states that names call query, key and value, all in one directory.
std::optional<FoundAttention> ByNames(const Layer& layer) {
  for (const LayerLinear& first : layer.Linears("")) {
    const Word word = first.named.word;
    if (word != Word::kQuery && word != Word::kFused) continue;
    FoundAttention found;
    found.folder = first.named.folder;
    for (const LayerLinear& linear : layer.Linears(found.folder)) {
      const Word other = linear.named.word;
      const bool with_it = other == Word::kQuery || other == Word::kKey || other == Word::kValue ||
                           other == Word::kKeyValue || other == Word::kFused;
      if (with_it && linear.named.folder == found.folder) found.in.push_back(linear);
    }
    return found;
  }
  return std::nullopt;
}

// Unknown names: one projection of heads * d features, two of as many as the fewer key heads have, and one back.
std::optional<FoundAttention> ByShapes(const Layer& layer) {
  const ModelNumbers& numbers = layer.numbers();
  const int64_t hidden = layer.hidden();
  if (!numbers.heads.known()) return std::nullopt;
  for (const LayerLinear& back : layer.Linears("")) {
    if (back.shape.out != hidden || back.shape.in % numbers.heads.value != 0) continue;
    const int64_t head_dim = back.shape.in / numbers.heads.value;
    const int64_t kv_heads = numbers.kv_heads.known() ? numbers.kv_heads.value : numbers.heads.value;
    // Two square matrices are ambiguous: neither shape shows which one enters and which one leaves.
    const bool named = back.named.word == Word::kOut || back.named.word == Word::kAttention;
    if (back.shape.in == hidden && (kv_heads == numbers.heads.value || !named) && !layer.knows_flow()) continue;
    FoundAttention found;
    found.folder = std::string(ParentOf(layer.name(back.item)));
    if (back.named.word == Word::kDown) continue;
    for (const LayerLinear& linear : layer.Linears(found.folder)) {
      if (linear.item == back.item || linear.shape.in != hidden || linear.named.word == Word::kUp) continue;
      if (!layer.Feeds(linear.item, back.item)) continue;
      LayerLinear named = linear;
      if (linear.shape.out == back.shape.in && Find(found, Word::kQuery) == nullptr) {
        named.named.word = Word::kQuery;
      } else if (linear.shape.out == kv_heads * head_dim) {
        named.named.word = Find(found, Word::kKey) == nullptr ? Word::kKey : Word::kValue;
      } else {
        continue;
      }
      found.in.push_back(named);
    }
    if (found.in.size() != 3 || Find(found, Word::kValue) == nullptr) continue;
    found.by_shape = !layer.knows_flow();
    found.out.push_back(back);
    return found;
  }
  return std::nullopt;
}

// The projection back: among those in the directory, or else in the directories around it, the one that names call so.
void FindOut(const Layer& layer, FoundAttention& found, int64_t features) {
  for (std::string folder = found.folder; found.out.empty(); folder = std::string(ParentOf(folder))) {
    std::vector<LayerLinear> fits;
    for (const LayerLinear& linear : layer.Linears(folder)) {
      const bool used = std::ranges::any_of(found.in, [&](const LayerLinear& in) { return in.item == linear.item; });
      const Word word = linear.named.word;
      const bool other = word == Word::kUp || word == Word::kDown;
      const bool fed =
          std::ranges::all_of(found.in, [&](const LayerLinear& in) { return layer.Feeds(in.item, linear.item); });
      if (!used && !other && fed && linear.shape.out == layer.hidden() && linear.shape.in == features)
        fits.push_back(linear);
    }
    if (fits.size() > 1) {
      std::erase_if(fits, [](const LayerLinear& linear) {
        return linear.named.word != Word::kOut && linear.named.word != Word::kAttention;
      });
    }
    if (fits.size() == 1) found.out = fits;
    if (folder.empty() || fits.size() > 1) return;
  }
}

// Heads and the size of one: those of the config; without them, the size of a norm on single heads. A candidate counts
// once a projection back from so many features is found. {0, 0} if it is unknown.
std::pair<int64_t, int64_t> HeadsOf(const Layer& layer, FoundAttention& found, int64_t query_features) {
  const ModelNumbers& numbers = layer.numbers();
  std::vector<std::pair<int64_t, int64_t>> candidates;
  if (numbers.heads.known() && query_features % numbers.heads.value == 0) {
    candidates.emplace_back(numbers.heads.value, query_features / numbers.heads.value);
    if (numbers.head_dim.known()) candidates.emplace_back(numbers.heads.value, numbers.head_dim.value);
  }
  for (const size_t i : layer.Left(found.folder)) {
    const int64_t size = layer.item(i).VectorSize();
    if (numbers.heads.known() || !IsNormName(layer.name(i)) || size == 0 || query_features % size != 0) continue;
    candidates.emplace_back(query_features / size, size);
  }
  for (const auto& [heads, head_dim] : candidates) {
    FindOut(layer, found, heads * head_dim);
    if (!found.out.empty()) return {heads, head_dim};
  }
  return candidates.empty() ? std::pair<int64_t, int64_t>() : candidates.front();
}

// A table with a column per head and "bias" in its name, which is added to the scores: relative_attention_bias.
bool IsBiasOfHeads(const Item& item, int64_t heads) {
  if (item.parameters->size() != 1 || item.parameters->front().name != "weight" || item.copies > 1) return false;
  const std::vector<int64_t>& shape = item.parameters->front().shape;
  return shape.size() == 2 && shape[1] == heads && ShortName(item.name).find("bias") != std::string::npos;
}

// Classifies the other modules of the directory; the first one that is not recognized keeps the block replicated.
std::optional<size_t> Leftover(const Layer& layer, FoundAttention& found, int64_t heads, int64_t head_dim) {
  if (found.folder.empty()) return std::nullopt;
  for (const size_t i : layer.Left(found.folder)) {
    const auto is_used = [&](const LayerLinear& linear) { return linear.item == i; };
    if (std::ranges::any_of(found.in, is_used) || std::ranges::any_of(found.out, is_used)) continue;
    const std::string& name = layer.name(i);
    const int64_t size = layer.item(i).VectorSize();
    const std::optional<Linear> linear = LinearOf(layer.item(i), layer.turned());
    if (IsNormName(name) && size == head_dim && ParentOf(name) == found.folder) {
      found.norms.push_back(i);
    } else if (name == found.folder && size == heads) {
      for (const Parameter& p : *layer.item(i).parameters) found.per_head.push_back(name + "." + p.name);
    } else if (IsBiasOfHeads(layer.item(i), heads) && ParentOf(name) == found.folder) {
      found.biases.push_back(i);
    } else if (linear && linear->in == layer.hidden() && linear->out == heads * head_dim &&
               ShortName(name).find("gate") != std::string::npos) {
      found.gates.push_back({i, *linear, ReadName(name)});
    } else {
      return i;
    }
  }
  return std::nullopt;
}

// Whether keys and values are made of what another stack computed.
bool IsCrossAttention(const std::string& folder) {
  std::string name = folder;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::any_of(std::array{"cross", "encoder_attn", "encoder_attention", "encdec", "enc_dec", "src_attn"},
                             [&](const char* word) { return name.find(word) != std::string::npos; });
}

std::string NameOf(const std::string& folder) { return folder.empty() ? "attention" : folder; }

class Attention {
 public:
  Attention(Layer& layer, FoundAttention found) : layer_(layer), found_(std::move(found)) {}

  Block Read() {
    const auto full = layer_.full_attention().find(found_.folder);
    if (full != layer_.full_attention().end()) {
      Block block = layer_.LeaveUnsharded(found_.folder, full->second);
      block.heads_of = found_.folder;
      return block;
    }
    const LayerLinear* fused = Find(found_, Word::kFused);
    return fused != nullptr ? ReadFused(*fused) : ReadSeparate();
  }

 private:
  Block Refuse(const std::string& why) {
    // In the layer's own directory it is only these.
    if (!found_.folder.empty())
      return layer_.LeaveUnsharded(found_.folder, NameOf(found_.folder) + " is not sharded between heads: " + why);
    std::vector<std::string> names;
    for (const LayerLinear& linear : found_.in) {
      names.push_back(layer_.name(linear.item));
      layer_.Take(linear.item);
    }
    Block block;
    block.decisions.push_back(Decide(Part::kFull, std::move(names)));
    block.unknown = true;
    block.why = "attention is not sharded between heads: " + why;
    return block;
  }

  Block ReadSeparate() {
    const LayerLinear* query = Find(found_, Word::kQuery);
    const LayerLinear* key = Find(found_, Word::kKey);
    const LayerLinear* value = Find(found_, Word::kValue);
    const LayerLinear* both = Find(found_, Word::kKeyValue);
    const bool fed =
        std::ranges::all_of(found_.in, [&](const LayerLinear& linear) { return linear.shape.in == layer_.hidden(); });
    if (!fed || query == nullptr)
      return Refuse(query == nullptr ? "it has no query projection"
                                     : "not all of its projections read the hidden states");
    const auto [heads, head_dim] = HeadsOf(layer_, found_, query->shape.out);
    if (heads == 0)
      return Refuse("the number of heads in its " + std::to_string(query->shape.out) + " query features is unknown");
    if (found_.out.size() != 1) return Refuse("it does not have exactly one output projection");
    const int64_t query_dim = query->shape.out / heads;
    const int64_t key_features = key != nullptr ? key->shape.out : both != nullptr ? both->shape.out / 2 : 0;
    const int64_t kv_heads = key_features == 0 ? 0 : key_features / head_dim;
    const bool even = key_features == kv_heads * head_dim && (value == nullptr || value->shape.out == key_features);
    if (!even || (kv_heads > 0 && heads % kv_heads != 0))
      return Refuse("its keys and values are not heads of " + std::to_string(head_dim) + " features");
    if (const std::optional<size_t> left = Leftover(layer_, found_, heads, head_dim))
      return RefuseLeftover(*left, heads * head_dim);

    Block block = Begin(Agreed(layer_.numbers().heads, heads), kv_heads);
    std::string why = HeadsText(heads, head_dim);
    if (kv_heads > 0 && kv_heads != heads)
      why += ", " + std::to_string(kv_heads) + (kv_heads == 1 ? " head" : " heads") + " for keys and values";
    if (query_dim != head_dim) {
      block.sure = false;
      why += "; each query head is " + std::to_string(query_dim / head_dim) +
             " times as wide as a key head: assumed to include a gate";
    }
    const ModelNumbers& numbers = layer_.numbers();
    const int64_t said = !numbers.heads.known()     ? head_dim
                         : numbers.head_dim.known() ? numbers.head_dim.value
                                                    : numbers.hidden.value / numbers.heads.value;
    if (numbers.borrowed && said != head_dim) {
      block.sure = false;
      why += "; the heads in config.json have " + std::to_string(said) + " features and may be those of another stack";
    }
    const bool cross = IsCrossAttention(found_.folder);
    if (block.kv_heads == block.heads && !cross) {
      Add(block, Part::kColwise, {query, key, value}, block.heads);
    } else {
      Add(block, Part::kColwise, {query}, block.heads);
      if (key != nullptr || value != nullptr) {
        Add(block, Part::kColwise, {key, value}, block.kv_heads);
        block.decisions.back().from_all = cross;
      }
    }
    if (both != nullptr) {
      block.sure = false;
      why += "; assumed order: all keys, then all values, in one projection";
      AddFused(block, *both, {Literal(key_features), Literal(key_features)}, {block.kv_heads, block.kv_heads});
      block.decisions.back().from_all = cross;
    }
    return End(std::move(block), why);
  }

  Block ReadFused(const LayerLinear& fused) {
    const ModelNumbers& numbers = layer_.numbers();
    if (fused.shape.in != layer_.hidden() || !numbers.heads.known())
      return Refuse(numbers.heads.known() ? "its fused projection does not read the hidden states"
                                          : "config.json has no number of heads");
    const int64_t heads = numbers.heads.value;
    int64_t kv_heads = numbers.kv_heads.known() ? numbers.kv_heads.value : heads;
    int64_t head_dim = numbers.head_dim.known() ? numbers.head_dim.value : layer_.hidden() / heads;
    // Where the config's key heads do not add up, each query has its own.
    if (fused.shape.out != (heads + 2 * kv_heads) * head_dim) kv_heads = heads;
    if (fused.shape.out != (heads + 2 * kv_heads) * head_dim) {
      return Refuse("the " + std::to_string(fused.shape.out) +
                    " features of its fused projection do not fit the heads in config.json");
    }
    FindOut(layer_, found_, heads * head_dim);
    if (found_.out.size() != 1) return Refuse("it does not have exactly one output projection");
    if (const std::optional<size_t> left = Leftover(layer_, found_, heads, head_dim))
      return RefuseLeftover(*left, heads * head_dim);
    Block block = Begin(numbers.heads, kv_heads);
    block.sure = false;
    const std::string name = layer_.name(fused.item);
    const bool by_head =
        (name.ends_with("query_key_value") && !numbers.model_type.starts_with("chatglm")) || name.ends_with("wqkv");
    std::string why = HeadsText(heads, head_dim);
    if (kv_heads != heads)
      why += ", " + std::to_string(kv_heads) + (kv_heads == 1 ? " head" : " heads") + " for keys and values";
    if (by_head) {
      why += "; assumed order: head by head (queries, key, value), as in other models with this name";
      block.heads = block.kv_heads;  // a group's queries cannot be on two ranks
      Add(block, Part::kColwise, {&fused}, block.kv_heads);
    } else {
      why += "; assumed order: all queries, all keys, all values";
      const Number query = Literal(heads * head_dim);
      const Number key = Literal(kv_heads * head_dim);
      AddFused(block, fused, {query, key, key}, {block.heads, block.kv_heads, block.kv_heads});
    }
    return End(std::move(block), why);
  }

  Block RefuseLeftover(size_t item, int64_t features) {
    const std::string name = ShortName(layer_.name(item));
    const int64_t size = layer_.item(item).VectorSize();
    if (IsNormName(name) && size > 0 && size <= features) {
      return Refuse(name + " is a norm over the features of all heads, and no rank would have all heads");
    }
    Block block = Refuse("how " + name + " uses the heads is unknown");
    block.heads_of = found_.folder;
    return block;
  }

  Block Begin(const Number& heads, int64_t kv_heads) {
    Block block;
    block.sure = !found_.by_shape;
    block.heads_of = found_.folder;
    block.heads = heads;
    const Number& config_kv = layer_.numbers().kv_heads;
    if (kv_heads == heads.value && config_kv.value != kv_heads) {
      block.kv_heads = heads;
    } else if (kv_heads > 0) {
      block.kv_heads = Agreed(config_kv, kv_heads);
    }
    return block;
  }

  void Add(Block& block, Part part, const std::vector<const LayerLinear*>& linears, const Number& heads) {
    std::vector<std::string> names;
    for (const LayerLinear* linear : linears) {
      if (linear == nullptr) continue;
      names.push_back(layer_.name(linear->item));
      layer_.Take(linear->item);
    }
    Decision decision = Decide(part, std::move(names), heads);
    decision.turned = layer_.turned();
    block.decisions.push_back(std::move(decision));
  }

  void AddFused(Block& block, const LayerLinear& linear, std::vector<Number> sizes, std::vector<Number> heads) {
    Add(block, Part::kFusedColwise, {&linear}, {});
    block.decisions.back().sizes = std::move(sizes);
    block.decisions.back().part_heads = std::move(heads);
  }

  Block End(Block block, const std::string& why) {
    if (!found_.norms.empty()) {
      std::vector<std::string> names;
      for (const size_t i : found_.norms) {
        names.push_back(layer_.name(i));
        layer_.Take(i);
      }
      block.decisions.push_back(Decide(Part::kHeadNorm, std::move(names)));
    }
    std::string more;
    for (const LayerLinear& gate : found_.gates) {
      Add(block, Part::kColwise, {&gate}, block.heads);
      more += "; " + ShortName(layer_.name(gate.item)) + " is assumed to be an elementwise gate";
    }
    if (!found_.per_head.empty()) {
      block.decisions.push_back(Decide(Part::kPerHead, found_.per_head, block.heads));
      for (const size_t i : layer_.Left(found_.folder)) {
        if (layer_.name(i) == found_.folder) layer_.Take(i);
      }
      more += "; " + ShortName(found_.per_head.front()) + " is assumed to hold one value per head";
    }
    if (!found_.biases.empty()) {
      std::vector<std::string> names;
      for (const size_t i : found_.biases) {
        names.push_back(layer_.name(i));
        layer_.Take(i);
      }
      // T5's name is that of such a table alone.
      if (ShortName(names.front()) != "relative_attention_bias")
        more += "; " + ShortName(names.front()) + " is assumed to be a table with one column per head";
      block.decisions.push_back(Decide(Part::kHeadTable, std::move(names), block.heads));
    }
    block.sure = block.sure && more.empty();
    Add(block, Part::kRowwise, {&found_.out.front()}, {});
    block.why = why + more + (found_.by_shape ? "; found by shapes alone" : "");
    return block;
  }

  Layer& layer_;
  FoundAttention found_;
};

}  // namespace

void ReadAttention(Layer& layer, std::vector<Block>& blocks) {
  while (std::optional<FoundAttention> found = ByNames(layer))
    blocks.push_back(Attention(layer, *std::move(found)).Read());
  while (std::optional<FoundAttention> found = ByShapes(layer))
    blocks.push_back(Attention(layer, *std::move(found)).Read());
}

}  // namespace moonshard
