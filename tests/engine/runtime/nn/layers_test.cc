// The drop-in layers: the same as torch::nn unsharded, and right on shards.
#include <torch/nn/functional/normalization.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <catch2/catch.hpp>

#include "engine/runtime/nn/conv.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/embedding_bag.h"
#include "engine/runtime/nn/group_norm.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"
#include "tests/support/rounding.h"

namespace {

namespace ms = moonshard::nn;
namespace test = moonshard::test;
using torch::Tensor;

// Parameters, forward and gradients of both layers after equal seeds.
template <class Ours, class Torch, class Options>
void CheckSame(const Options& options, const Tensor& input) {
  torch::manual_seed(7);
  Ours ours(options);
  torch::manual_seed(7);
  Torch theirs(options);
  REQUIRE(ours->named_parameters().keys() == theirs->named_parameters().keys());
  const Tensor y = ours(input);
  REQUIRE(torch::equal(y, theirs(input)));
  (y * y).sum().backward();
  const Tensor z = theirs(input);
  (z * z).sum().backward();
  for (const auto& entry : theirs->named_parameters()) {
    INFO(entry.key());
    const Tensor& own = ours->named_parameters()[entry.key()];
    CHECK(torch::equal(own, entry.value()));
    CHECK(torch::equal(own.grad(), entry.value().grad()));
  }
  auto copy = std::dynamic_pointer_cast<typename Ours::Impl>(ours->clone());
  REQUIRE(copy);
  CHECK(torch::equal(copy->forward(input), y));
  CHECK_FALSE(copy->weight.is_same(ours->weight));
  CHECK(copy->weight.is_same(copy->named_parameters()["weight"]));
}

// Within rounding of float32: a layer's few sums, of at most ten terms, on the way there and back.
bool Near(const Tensor& found, const Tensor& expected) {
  const Tensor difference = (found - expected).abs().max() / expected.abs().max();
  return difference.item<double>() <= test::RoundingBound({.terms = 10, .depth = 8});
}

}  // namespace

TEST_CASE("unsharded layers equal torch's") {
  torch::manual_seed(1);
  const Tensor x = torch::randn({3, 5, 6});
  CheckSame<ms::Linear, torch::nn::Linear>(torch::nn::LinearOptions(6, 4), x);
  CheckSame<ms::Linear, torch::nn::Linear>(torch::nn::LinearOptions(6, 4).bias(false), x);
  CheckSame<ms::LayerNorm, torch::nn::LayerNorm>(torch::nn::LayerNormOptions({6}).eps(1e-3), x);
  const Tensor ids = torch::randint(0, 11, {4, 3});
  CheckSame<ms::Embedding, torch::nn::Embedding>(torch::nn::EmbeddingOptions(11, 6), ids);
  CheckSame<ms::Embedding, torch::nn::Embedding>(torch::nn::EmbeddingOptions(11, 6).padding_idx(-2), ids);
  CheckSame<ms::Embedding, torch::nn::Embedding>(torch::nn::EmbeddingOptions(11, 6).max_norm(0.5), ids);
}

TEST_CASE("unsharded convolutions equal torch's") {
  torch::manual_seed(1);
  using One = torch::nn::Conv1dOptions;
  using Two = torch::nn::Conv2dOptions;
  CheckSame<ms::Conv1d, torch::nn::Conv1d>(One(6, 4, 3).stride(2).padding(1), torch::randn({3, 6, 7}));
  CheckSame<ms::Conv1d, torch::nn::Conv1d>(One(6, 4, 3).padding(torch::kSame).groups(2), torch::randn({6, 7}));
  CheckSame<ms::Conv1d, torch::nn::Conv1d>(One(6, 4, 3).padding(1).padding_mode(torch::kCircular),
                                           torch::randn({3, 6, 7}));
  CheckSame<ms::Conv2d, torch::nn::Conv2d>(Two(6, 4, {3, 2}).dilation(2), torch::randn({3, 6, 7, 5}));
  CheckSame<ms::Conv3d, torch::nn::Conv3d>(torch::nn::Conv3dOptions(6, 4, 2), torch::randn({2, 6, 3, 4, 5}));

  const Tensor x = torch::randn({2, 6, 7});
  ms::Conv1d late(One(6, 4, 3).padding(torch::kSame).groups(2).stride(1));
  const Tensor full = late(x);
  REQUIRE(late->HoldBack("bias"));
  REQUIRE(late->LateDim("bias") == -2);
  CHECK(Near(late(x) + late->bias.view({4, 1}), full));
  CHECK_FALSE(Near(late(x), full));
  late->ReleaseBack("bias");
  CHECK(torch::equal(late(x), full));
  CHECK_FALSE(late->HoldBack("weight"));
  CHECK_FALSE(ms::Conv1d(One(6, 4, 3).bias(false))->HoldBack("bias"));
  CHECK_FALSE(ms::Conv1d(One(6, 4, 3).padding_mode(torch::kReflect))->HoldBack("bias"));

  const ms::DeferInit defer;
  const ms::Conv2d deferred(Two(6, 4, {3, 2}).groups(2).padding(torch::kSame));
  CHECK(deferred->weight.is_meta());
  CHECK(deferred->weight.sizes() == std::vector<int64_t>{4, 3, 3, 2});
  CHECK(deferred->bias.sizes() == std::vector<int64_t>{4});
  CHECK(deferred->options.groups() == 2);
  CHECK(deferred->options.in_channels() == 6);
  CHECK_THROWS_WITH(ms::Conv1d(One(6, 4, 3).groups(4)), Catch::Contains("divisible by groups"));
}

TEST_CASE("unsharded norms over groups and embedding bags equal torch's") {
  torch::manual_seed(1);
  CheckSame<ms::GroupNorm, torch::nn::GroupNorm>(torch::nn::GroupNormOptions(3, 6).eps(1e-3), torch::randn({2, 6, 4}));
  CHECK(torch::equal(ms::GroupNorm(torch::nn::GroupNormOptions(3, 6).affine(false))(torch::ones({2, 6, 4})),
                     torch::zeros({2, 6, 4})));
  using Bag = torch::nn::EmbeddingBagOptions;
  const Tensor ids = torch::randint(0, 11, {4, 3});
  CheckSame<ms::EmbeddingBag, torch::nn::EmbeddingBag>(Bag(11, 6), ids);
  CheckSame<ms::EmbeddingBag, torch::nn::EmbeddingBag>(Bag(11, 6).mode(torch::kSum).padding_idx(-2), ids);
  CheckSame<ms::EmbeddingBag, torch::nn::EmbeddingBag>(Bag(11, 6).mode(torch::kMax).max_norm(0.5), ids);
  CHECK_FALSE(ms::EmbeddingBag(Bag(11, 6).mode(torch::kMax))->SetLocalRows(0, 11, 11));

  const ms::DeferInit defer;
  const ms::GroupNorm norm(torch::nn::GroupNormOptions(3, 6));
  CHECK((norm->weight.is_meta() && norm->weight.sizes() == norm->bias.sizes() && norm->weight.size(0) == 6));
  CHECK(norm->options.num_groups() == 3);
  const ms::EmbeddingBag bag(Bag(11, 6).padding_idx(-2));
  CHECK((bag->weight.is_meta() && bag->weight.size(0) == 11 && bag->weight.size(1) == 6));
  CHECK(bag->options.padding_idx() == 9);
}

TEST_CASE("channels that are not those of a number of groups are an error") {
  ms::Conv1d conv(torch::nn::Conv1dOptions(8, 8, 1).groups(2));
  conv->weight.set_data(conv->weight.detach().narrow(0, 0, 3).clone());
  conv->bias.set_data(conv->bias.detach().narrow(0, 0, 3).clone());
  CHECK_THROWS_WITH(conv(torch::ones({1, 4, 2})), Catch::Contains("not those of a number of groups"));
  ms::GroupNorm norm(torch::nn::GroupNormOptions(2, 8));
  norm->weight.set_data(torch::ones({3}));
  norm->bias.set_data(torch::ones({3}));
  CHECK_THROWS_WITH(norm(torch::ones({1, 3, 2})), Catch::Contains("not those of a number of groups"));
}

TEST_CASE("a linear layer follows the shards that its parameters hold") {
  torch::manual_seed(2);
  ms::Linear linear(6, 4);
  const Tensor x = torch::randn({2, 6});
  const Tensor full = linear(x);
  const Tensor weight = linear->weight.detach().clone();
  const Tensor bias = linear->bias.detach().clone();
  linear->weight.set_data(weight.narrow(0, 1, 2).clone());
  linear->bias.set_data(bias.narrow(0, 1, 2).clone());
  CHECK(Near(linear(x), full.narrow(1, 1, 2)));
  linear->weight.set_data(weight);
  linear->bias.set_data(bias);

  REQUIRE(linear->HoldBack("bias"));
  CHECK(Near(linear(x) + linear->bias, full));
  CHECK_FALSE(Near(linear(x), full));
  CHECK_FALSE(linear->HoldBack("weight"));
  CHECK_FALSE(ms::Linear(torch::nn::LinearOptions(6, 4).bias(false))->HoldBack("bias"));
}

TEST_CASE("a tied weight is one tensor under both names") {
  ms::Embedding embedding(11, 6);
  ms::Linear head(torch::nn::LinearOptions(6, 11).bias(false));
  head->TieWeight(embedding->weight);
  CHECK(head->weight.is_same(embedding->weight));
  CHECK(head->named_parameters()["weight"].is_same(embedding->weight));
}

TEST_CASE("lookups in shards of the vocabulary add up to the whole, forward and backward") {
  const int64_t total = 11;
  const int64_t padding = GENERATE(-1, 0, 4, 10);
  torch::manual_seed(3);
  auto options = torch::nn::EmbeddingOptions(total, 6);
  if (padding >= 0) options.padding_idx(padding);
  ms::Embedding full(options);
  const Tensor ids = torch::cat({torch::randint(0, total, {9}), torch::tensor({0, 4, 10})}).view({2, 6});
  const Tensor factor = torch::randint(-3, 4, {2, 6, 6}).to(torch::kFloat);
  const Tensor expected = full(ids);
  (expected * factor).sum().backward();

  Tensor sum = torch::zeros_like(expected);
  for (auto [first, rows] : {std::pair<int64_t, int64_t>{0, 4}, {4, 4}, {8, 3}, {11, 0}}) {
    INFO("rows from " << first);
    ms::Embedding shard(options);
    shard->weight.set_data(full->weight.detach().narrow(0, first, rows).clone());
    REQUIRE(shard->SetLocalRows(first, rows, total));
    const Tensor part = shard(ids);
    REQUIRE(part.sizes() == expected.sizes());
    REQUIRE(part.requires_grad());
    sum = sum + part.detach();
    (part * factor).sum().backward();
    REQUIRE(shard->weight.grad().defined());
    CHECK(torch::equal(shard->weight.grad(), full->weight.grad().narrow(0, first, rows)));
  }
  CHECK(torch::equal(sum, expected));
}

TEST_CASE("local rows still refuse ids outside the whole table, and options that need all rows") {
  ms::Embedding shard(11, 6);
  shard->weight.set_data(shard->weight.detach().narrow(0, 4, 3).clone());
  REQUIRE(shard->SetLocalRows(4, 3, 11));
  CHECK_NOTHROW(shard(torch::tensor({0, 10})));
  CHECK_THROWS_WITH(shard(torch::tensor({0, 11})), Catch::Contains("outside the table of 11 rows"));
  CHECK_THROWS_AS(shard(torch::tensor({-1, 3})), c10::IndexError);
  CHECK(shard(torch::zeros({2, 0}, torch::kLong)).sizes() == torch::IntArrayRef({2, 0, 6}));
  CHECK_FALSE(ms::Embedding(torch::nn::EmbeddingOptions(5, 2).max_norm(1))->SetLocalRows(0, 5, 5));
  CHECK_FALSE(ms::Embedding(torch::nn::EmbeddingOptions(5, 2).scale_grad_by_freq(true))->SetLocalRows(0, 5, 5));
}

TEST_CASE("from_pretrained keeps the table and freezes it") {
  const Tensor table = torch::randn({5, 2});
  ms::Embedding embedding = ms::Embedding::from_pretrained(table);
  CHECK(torch::equal(embedding(torch::tensor({3}))[0], table[3]));
  CHECK_FALSE(embedding->weight.requires_grad());
}

TEST_CASE("RMSNorm is its formula") {
  torch::manual_seed(4);
  ms::RMSNorm norm(ms::RMSNormOptions(6).eps(1e-2));
  CHECK(torch::equal(norm->weight, torch::ones({6})));
  norm->weight.set_data(torch::randn({6}));
  const Tensor x = torch::randn({3, 6});
  const Tensor expected = norm->weight * x / torch::sqrt((x * x).sum(-1, true) / 6 + 1e-2);
  CHECK(Near(norm(x), expected));

  // The product with the weight happens in the narrow dtype, after the cast.
  norm->weight.set_data(norm->weight.to(torch::kBFloat16));
  const Tensor narrow = x.to(torch::kBFloat16);
  const Tensor wide = narrow.to(torch::kFloat);
  const Tensor normalised = (wide / torch::sqrt((wide * wide).mean(-1, true) + 1e-2)).to(torch::kBFloat16);
  CHECK(norm(narrow).scalar_type() == torch::kBFloat16);
  CHECK(torch::allclose(norm(narrow).to(torch::kFloat), (normalised * norm->weight).to(torch::kFloat), 0.01, 0));

  norm->weight.set_data(torch::ones({6}, torch::kDouble));
  const Tensor precise = torch::randn({3, 6}, torch::kDouble);
  CHECK(torch::allclose(norm(precise), precise / torch::sqrt((precise * precise).mean(-1, true) + 1e-2), 1e-14, 1e-14));
}

TEST_CASE("RMSNorm with a unit offset multiplies by 1 + weight in float32") {
  torch::manual_seed(8);
  ms::RMSNorm norm(ms::RMSNormOptions(6).eps(1e-3).unit_offset(true));
  CHECK(torch::equal(norm->weight, torch::zeros(6)));
  const Tensor weight = (0.3 * torch::randn({6})).to(torch::kBFloat16);
  norm->weight.set_data(weight);
  const Tensor x = torch::randn({2, 3, 6}).to(torch::kBFloat16);
  const Tensor wide = x.to(torch::kFloat);
  const Tensor normed = wide / (wide.square().mean(-1, true) + 1e-3).sqrt();
  const Tensor expected = (normed * (1 + weight.to(torch::kFloat))).to(torch::kBFloat16);
  const Tensor y = norm(x);
  CHECK(y.scalar_type() == torch::kBFloat16);
  CHECK(torch::allclose(y, expected, 1e-2));
  CHECK_FALSE(torch::allclose(y, (normed * weight.to(torch::kFloat)).to(torch::kBFloat16), 1e-2));
}

TEST_CASE("a NormHead sees the direction of its rows alone, whichever rows it holds") {
  torch::manual_seed(9);
  ms::NormHead head(6, 10);
  const Tensor x = torch::randn({2, 3, 6});
  const Tensor full = head(x);
  CHECK(Near(full, torch::linear(x, torch::nn::functional::normalize(head->weight))));
  full.square().sum().backward();
  const Tensor gradient = head->weight.grad().clone();
  const Tensor weight = head->weight.detach().clone();
  const auto copy = std::dynamic_pointer_cast<ms::NormHead::Impl>(head->clone());
  REQUIRE(copy);
  CHECK(torch::equal(copy->forward(x), full));
  {
    const torch::NoGradGuard no_grad;
    head->weight.mul_(3);
  }
  CHECK(Near(head(x), full));
  ms::NormHead shard(6, 10);
  ms::Materialize(shard->weight, weight.narrow(0, 4, 3).clone());
  const Tensor some = shard(x);
  CHECK(Near(some, full.narrow(-1, 4, 3)));
  some.square().sum().backward();
  CHECK(Near(shard->weight.grad(), gradient.narrow(0, 4, 3)));
}
