#include "tests/engine/analysis/prove/adversarial.h"

namespace moonshard::test::adversarial {

Build Layers(std::vector<LayerOf> layers) {
  return [layers = std::move(layers)](BlockImpl& m) {
    for (const LayerOf& layer : layers) m.AddLinear(layer.name, layer.in, layer.out, layer.bias);
  };
}

Build WithVector(int64_t features) {
  return [features](BlockImpl& m) {
    m.AddLinear("up", 4, features);
    m.AddParameter("v", torch::linspace(-0.9, 1.3, 4));
  };
}

Style Columns(const Layout& weight, const Layout& out, const Layout& in) {
  Style style = ColwiseStyle();
  style.params = {{"weight", weight}, {"bias", weight}};
  style.inputs = {Redistribution{in, kShared}};
  style.outputs = {Redistribution{out, out}};
  return style;
}

Style OwnedColumns(int64_t owner, const Layout& in) {
  return Columns(Layout::Owned(0, owner), Layout::Owned(-1, owner), in);
}

Style Rows(const Layout& to) {
  Style style = RowwiseStyle();
  style.after.clear();
  style.outputs = {Redistribution{kTerms, to}};
  return style;
}

Style OwnedRows(int64_t owner, const Layout& to) {
  Style style = Rows(to);
  style.params = {{"weight", Layout::Owned(1, owner)}};
  style.inputs = {Redistribution{Layout::Owned(-1, owner), Layout::Owned(-1, owner)}};
  return style;
}

Style OutChannels(const Layout& in) {
  Style style;
  style.name = "channels";
  style.params = {{"weight", Layout::Shard(0)}, {"bias", Layout::Shard(0)}};
  style.inputs = {Redistribution{in, in}};
  style.outputs = {Redistribution{Layout::Shard(1), Layout::Shard(1)}};
  return style;
}

Styles Around(Styles layers, const Layout& b, const Layout& in, const std::optional<Layout>& out) {
  Style block;
  block.name = "block";
  block.params["b"] = b;
  block.inputs = {Redistribution{kReplicated, in}};
  if (out) block.outputs = {Redistribution{*out, kReplicated}};
  layers["block"] = std::move(block);
  return layers;
}

Styles Replicated(const std::optional<Layout>& out, const std::string& layer) {
  return Around({{"block." + layer, Columns(Layout::Shard(0), Layout::Shard(-1), kReplicated)}}, kReplicated,
                kReplicated, out);
}

at::Tensor Expanded(const at::Tensor& b, int64_t n) { return b.expand({2, 3, n}); }

}  // namespace moonshard::test::adversarial
