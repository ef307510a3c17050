// Recognition of latent attention (DeepSeek's MLA): queries, keys and values start from small latents that every rank
// has in full; the projections out of the latents are sharded between heads.
#include <algorithm>
#include <optional>
#include <set>

#include "dsl/planning/suggest/layer.h"

namespace moonshard {
namespace {

struct Latent {
  size_t norm = 0;
  LayerLinear to;
  LayerLinear from;
};

// A norm of a size of its own, with one projection to that many features (and perhaps a rotary key beside them) and one
// from them.
std::optional<Latent> FindLatent(const Layer& layer, const std::string& folder, size_t norm) {
  const int64_t rank = layer.item(norm).VectorSize();
  if (rank == 0 || rank == layer.hidden() || !IsNormName(layer.name(norm))) return std::nullopt;
  std::vector<LayerLinear> to;
  std::vector<LayerLinear> from;
  for (const LayerLinear& linear : layer.Linears(folder)) {
    const bool leads_to = linear.shape.out == rank || linear.shape.out == rank + layer.numbers().rotary_dim;
    if (linear.shape.in == layer.hidden() && leads_to) to.push_back(linear);
    if (linear.shape.in == rank && linear.shape.out != layer.hidden()) from.push_back(linear);
  }
  // Another latent may have as many features as this one has with the rotary key: names tell them apart.
  const auto first_word = [&](size_t item) {
    return ShortName(layer.name(item)).substr(0, ShortName(layer.name(item)).find('_'));
  };
  if (to.size() > 1)
    std::erase_if(to, [&](const LayerLinear& linear) { return first_word(linear.item) != first_word(norm); });
  if (to.size() != 1 || from.size() != 1) return std::nullopt;
  return Latent{norm, to.front(), from.front()};
}

// Two streams are required: keys and values come from a latent, and queries from a latent or directly. The latent is
// computed in full on every rank, since its norm needs all its features; shards begin after it. Each rank then uses the
// full latent for its own heads only, so gradients of the latent and of the norm's weight are terms of a sum over the
// ranks ("shared", Part::kSummed).
// Every module of the directory must be one of these: otherwise the general readers decide.
std::optional<Block> ReadIn(Layer& layer, const std::string& folder) {
  const int64_t heads = layer.numbers().heads.value;
  std::vector<Latent> latents;
  for (const size_t i : layer.Left(folder)) {
    if (std::optional<Latent> latent = FindLatent(layer, folder, i)) latents.push_back(*latent);
  }
  std::vector<size_t> used;
  for (const Latent& latent : latents) used.insert(used.end(), {latent.norm, latent.to.item, latent.from.item});
  std::optional<LayerLinear> query;
  std::optional<LayerLinear> out;
  for (const LayerLinear& linear : layer.Linears(folder)) {
    if (std::ranges::find(used, linear.item) != used.end()) continue;
    if (linear.shape.in == layer.hidden() && linear.named.word == Word::kQuery) query = linear;
    if (linear.shape.out == layer.hidden() && linear.shape.in % heads == 0 && linear.named.word != Word::kQuery) {
      out = linear;
    }
  }
  if (latents.empty() || !out || latents.size() + (query ? 1 : 0) != 2) return std::nullopt;
  if (layer.Left(folder).size() != used.size() + 1 + (query ? 1 : 0)) return std::nullopt;
  Block block;
  std::vector<std::string> to;
  std::vector<std::string> norms;
  std::vector<std::string> from;
  for (const Latent& latent : latents) {
    to.push_back(layer.name(latent.to.item));
    norms.push_back(layer.name(latent.norm));
    from.push_back(layer.name(latent.from.item));
  }
  const Number& n_heads = layer.numbers().heads;
  if (query) block.decisions.push_back(Decide(Part::kColwise, {layer.name(query->item)}, n_heads));
  block.decisions.push_back(Decide(Part::kToLatent, std::move(to)));
  block.decisions.push_back(Decide(Part::kSummed, std::move(norms)));
  block.decisions.push_back(Decide(Part::kFromLatent, std::move(from), n_heads));
  block.decisions.push_back(Decide(Part::kRowwise, {layer.name(out->item)}));
  for (const size_t i : layer.Left(folder)) layer.Take(i);
  block.heads_of = folder;
  block.heads = n_heads;
  block.why = std::to_string(heads) + " heads, computed from latents of " +
              std::to_string(layer.numbers().kv_latent.value) + " features that are full on every rank";
  return block;
}

}  // namespace

// A found block takes its modules, so the search begins again after each one: LongCat's layers have two.
void ReadLatentAttention(Layer& layer, std::vector<Block>& blocks) {
  if (!layer.numbers().kv_latent.known() || !layer.numbers().heads.known() || layer.turned()) return;
  std::set<std::string> read;  // directories
  for (bool again = true; again;) {
    again = false;
    for (const LayerLinear& linear : layer.Linears("")) {
      if (linear.shape.in != layer.numbers().kv_latent.value) continue;
      const std::string folder(ParentOf(layer.name(linear.item)));
      if (folder.empty() || !read.insert(folder).second) continue;
      std::optional<Block> block = ReadIn(layer, folder);
      if (!block) continue;
      blocks.push_back(*std::move(block));
      again = true;
      break;
    }
  }
}

}  // namespace moonshard
