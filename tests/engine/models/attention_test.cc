// The masks that a decoder gives layers of any class, and the tokens that attention checks.
#include "engine/models/attention.h"

#include <catch2/catch.hpp>

#include <memory>
#include <optional>
#include <vector>

#include <ATen/Functions.h>

#include "engine/models/decoder.h"

namespace moonshard {
namespace {

// Attention of a host's own: it knows LayerContext, and is no AttentionBlock.
class OwnAttentionImpl : public SequenceBlock {
 public:
  at::Tensor forward(const at::Tensor& hidden, const LayerContext& context) override {
    masks.push_back(context.mask);
    const at::Tensor heads = SplitHeads(hidden, hidden.size(2));
    return Attend(heads, heads, heads, context, /*dropout=*/0);
  }
  std::vector<std::optional<at::Tensor>> masks;
};
MOONSHARD_MODULE(OwnAttention);

DecoderSpec SpecOf(std::optional<int64_t> window) {
  DecoderSpec spec;
  spec.config.vocab_size = 8;
  spec.config.hidden_size = 4;
  spec.config.num_hidden_layers = 1;
  spec.config.num_attention_heads = spec.config.num_key_value_heads = 1;
  spec.config.head_dim = 4;
  spec.config.kinds[0].rope.dims = 4;
  spec.config.kinds[0].window = window;
  spec.config.kind_of_layer = {0};
  return spec;
}

TEST_CASE("a layer of a host's own class has the mask of window and padding") {
  const OwnAttention own;
  DecoderSpec spec = SpecOf(2);
  spec.layer = [&](int64_t) { return own.ptr(); };
  Decoder decoder(spec);
  const at::Tensor ids = at::arange(5).unsqueeze(0);
  decoder(ids);
  REQUIRE(own->masks.back().has_value());
  CHECK(own->masks.back()->equal(*MakeAttentionMask(5, 2, std::nullopt, at::kCPU)));
  at::Tensor padding = at::ones({1, 5}, at::kLong);
  padding[0][0] = 0;
  decoder(ids, padding);
  REQUIRE(own->masks.back().has_value());
  CHECK(own->masks.back()->equal(*MakeAttentionMask(5, 2, padding, at::kCPU)));
}

TEST_CASE("attention refuses heads that do not have the tokens of the sequence") {
  LayerContext context;
  context.positions = at::arange(6).unsqueeze(0);
  const at::Tensor heads = at::ones({1, 2, 3, 4});
  CHECK_THROWS_WITH(Attend(heads, heads, heads, context, 0),
                    Catch::Contains("this rank has 3 of 6 tokens, and the plan has neither a ring"));
}

}  // namespace
}  // namespace moonshard
