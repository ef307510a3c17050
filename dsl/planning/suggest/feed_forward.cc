// Recognition of feed-forward blocks: one or two projections to wide features, and the down projection.
#include <algorithm>
#include <optional>

#include "dsl/planning/suggest/layer.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

struct FoundFeedForward {
  std::string folder;
  LayerLinear down;
  std::vector<LayerLinear> up;
  bool fused = false;  // gate and up in one
};

// The projections to the input features of `down`, in its directory or in the nearest enclosing one that has any.
std::optional<FoundFeedForward> FindUp(const Layer& layer, const LayerLinear& down) {
  const bool square = down.shape.in == layer.hidden();
  if (square && down.named.word != Word::kDown) return std::nullopt;
  for (std::string folder(ParentOf(layer.name(down.item)));; folder = std::string(ParentOf(folder))) {
    FoundFeedForward found{folder, down, {}, false};
    std::vector<LayerLinear> fused;
    for (const LayerLinear& linear : layer.Linears(folder)) {
      if (linear.item == down.item || linear.shape.in != layer.hidden()) continue;
      if (square && linear.named.word != Word::kUp) continue;
      if (!layer.FeedsElementwise(linear.item, down.item)) continue;
      if (linear.shape.out == down.shape.in) found.up.push_back(linear);
      if (linear.shape.out == 2 * down.shape.in) fused.push_back(linear);
    }
    if (found.up.empty() && fused.size() == 1) {
      found.up = fused;
      found.fused = true;
    }
    if (found.up.size() == 1 || found.up.size() == 2) return found;
    if (folder.empty() || !found.up.empty()) return std::nullopt;
  }
}

bool IsNamed(const FoundFeedForward& found) {
  const Word down = found.down.named.word;
  return (down == Word::kDown || down == Word::kOut) &&
         std::ranges::all_of(found.up, [](const LayerLinear& linear) { return linear.named.word == Word::kUp; });
}

// Whether shapes alone are enough: an unnamed pair is ambiguous if it is narrow, or not in a module of its own.
bool IsPlausible(const Layer& layer, const FoundFeedForward& found) {
  const int64_t wide = found.down.shape.in;
  if (IsNamed(found) || layer.numbers().wide.value == wide || layer.knows_flow()) return true;
  return !found.folder.empty() && 2 * wide >= layer.hidden();
}

// A module in the block that is neither of them; norms over the hidden states before it are allowed.
std::optional<size_t> LeftoverOfFeedForward(const Layer& layer, const FoundFeedForward& found) {
  if (found.folder.empty()) return std::nullopt;
  for (const size_t i : layer.Left(found.folder)) {
    const bool used = i == found.down.item ||
                      std::ranges::any_of(found.up, [&](const LayerLinear& linear) { return linear.item == i; });
    const bool norm = IsNormName(layer.name(i)) && layer.item(i).VectorSize() == layer.hidden() &&
                      found.down.shape.in != layer.hidden();
    // The true flow shows what has nothing to do with the block's features.
    const bool apart = layer.knows_flow() && !layer.Feeds(i, found.down.item) &&
                       std::ranges::none_of(found.up, [&](const LayerLinear& up) { return layer.Feeds(up.item, i); });
    if (!used && !norm && !apart) return i;
  }
  return std::nullopt;
}

Block Read(Layer& layer, const FoundFeedForward& found) {
  const int64_t wide = found.down.shape.in;
  Block block;
  std::vector<std::string> names;
  for (const LayerLinear& linear : found.up) {
    names.push_back(layer.name(linear.item));
    layer.Take(linear.item);
  }
  layer.Take(found.down.item);
  Decision up = Decide(found.fused ? Part::kFusedColwise : Part::kColwise, std::move(names));
  up.turned = layer.turned();
  const Number& config = layer.numbers().wide;
  const Number size = config.value == wide ? config : Literal(wide);
  if (found.fused) up.sizes = {size, size};
  Decision down = Decide(Part::kRowwise, {layer.name(found.down.item)});
  down.turned = layer.turned();
  block.decisions = {std::move(up), std::move(down)};
  const bool known = IsNamed(found) || layer.knows_flow();
  block.why = std::to_string(layer.hidden()) + " features to " + std::to_string(wide) + " and back";
  if (found.fused) {
    block.sure = IsGateThenUp(layer.name(found.up.front().item), layer.numbers().model_type);
    block.why += block.sure ? "; order: gate, then up" : "; assumed order: gate, then up";
  } else {
    block.sure = known || (wide != layer.hidden() && config.value == wide);
  }
  if (!block.sure && !found.fused) block.why += "; found by shapes alone";
  return block;
}

// Whether the activation takes the mean and the deviation over all features of a gate.
bool DependsOnAllFeatures(const Layer& layer, const FoundFeedForward& found) {
  return layer.numbers().sparse_gate && (found.fused || found.up.size() == 2);
}

Block LeaveSparse(Layer& layer, const FoundFeedForward& found) {
  Block block;
  std::vector<std::string> names;
  for (const LayerLinear& linear : found.up) {
    names.push_back(layer.name(linear.item));
    layer.Take(linear.item);
  }
  names.push_back(layer.name(found.down.item));
  layer.Take(found.down.item);
  block.decisions.push_back(Decide(Part::kFull, std::move(names)));
  block.unknown = true;
  block.why =
      "not sharded by features: activation_sparsity_pattern in config.json is above 0 in some layers, whose activation "
      "takes the mean and the deviation over all features of the gate; a pattern of zeros would decide otherwise";
  return block;
}

}  // namespace

// Starts from the projection back, of which a block has exactly one, and looks for the one or two projections to its
// input features. A found block takes its modules, which changes what the next search sees, so the search begins again
// after each one; a layer has few of them. It ends because each turn takes at least one module.
void ReadFeedForward(Layer& layer, std::vector<Block>& blocks) {
  for (bool again = true; again;) {
    again = false;
    for (const LayerLinear& down : layer.Linears("")) {
      if (down.shape.out != layer.hidden()) continue;
      const std::optional<FoundFeedForward> found = FindUp(layer, down);
      if (!found || !IsPlausible(layer, *found)) continue;
      if (const std::optional<size_t> left = LeftoverOfFeedForward(layer, *found)) {
        blocks.push_back(layer.LeaveUnsharded(found->folder, found->folder + " is not sharded by features: how " +
                                                                 ShortName(layer.name(*left)) +
                                                                 " uses the features is unknown"));
      } else if (DependsOnAllFeatures(layer, *found)) {
        blocks.push_back(LeaveSparse(layer, *found));
      } else {
        blocks.push_back(Read(layer, *found));
      }
      again = true;
      break;
    }
  }
}

}  // namespace moonshard
