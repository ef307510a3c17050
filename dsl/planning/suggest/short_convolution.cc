// Recognition of short convolutions (LFM2): a projection to two gates and the features, a convolution of single
// channels over the features times the first gate, and a projection back from the result times the second gate. A
// channel of the features needs the same channel of the gates, and nothing else before the projection back: each of the
// three parts is sharded by itself, the convolution along its channels.
#include <algorithm>
#include <optional>

#include "dsl/planning/suggest/layer.h"

namespace moonshard {
namespace {

// Whether the item is a convolution of single channels with so many of them.
bool IsDepthwise(const Item& item, int64_t channels) {
  const ModuleTree::Signature& parameters = *item.parameters;
  const auto weight = std::ranges::find(parameters, "weight", &Parameter::name);
  if (weight == parameters.end() || weight->shape.size() != 3) return false;
  const bool others = std::ranges::any_of(
      parameters, [&](const Parameter& p) { return p.name != "weight" && p.shape != std::vector<int64_t>{channels}; });
  return weight->shape[0] == channels && weight->shape[1] == 1 && !others && item.copies == 1;
}

std::optional<Block> ReadIn(Layer& layer, size_t convolution) {
  const std::string folder(ParentOf(layer.name(convolution)));
  const std::vector<LayerLinear> linears = layer.Linears(folder);
  if (folder.empty() || linears.size() != 2 || layer.Left(folder).size() != 3) return std::nullopt;
  const int64_t hidden = layer.hidden();
  const auto in = std::ranges::find_if(
      linears, [&](const LayerLinear& linear) { return linear.shape.in == hidden && linear.shape.out == 3 * hidden; });
  const auto out = std::ranges::find_if(
      linears, [&](const LayerLinear& linear) { return linear.shape.in == hidden && linear.shape.out == hidden; });
  if (in == linears.end() || out == linears.end()) return std::nullopt;
  Block block;
  Decision parts = Decide(Part::kFusedColwise, {layer.name(in->item)});
  const Number size = layer.numbers().hidden.value == hidden ? layer.numbers().hidden : Literal(hidden);
  parts.sizes = {size, size, size};
  std::vector<std::string> channels;
  for (const Parameter& p : *layer.item(convolution).parameters)
    channels.push_back(layer.name(convolution) + "." + p.name);
  block.decisions = {std::move(parts), Decide(Part::kPerChannel, std::move(channels)),
                     Decide(Part::kRowwise, {layer.name(out->item)})};
  block.sure = layer.numbers().model_type.starts_with("lfm2");
  block.why = "a convolution of " + std::to_string(hidden) + " single channels, between two gates" +
              (block.sure ? "" : "; assumed order: gate, gate, features");
  for (const size_t i : {in->item, convolution, out->item}) layer.Take(i);
  return block;
}

}  // namespace

void ReadShortConvolutions(Layer& layer, std::vector<Block>& blocks) {
  if (layer.turned()) return;
  for (const size_t i : layer.Left("")) {
    if (!IsDepthwise(layer.item(i), layer.hidden())) continue;
    if (std::optional<Block> block = ReadIn(layer, i)) blocks.push_back(*std::move(block));
  }
}

}  // namespace moonshard
