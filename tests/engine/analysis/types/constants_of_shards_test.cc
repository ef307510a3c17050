// Constants that take their sizes from a shard: where they are as long as it, and what a reduction of them is.
#include <catch2/catch.hpp>

#include "tests/engine/analysis/types/typed.h"

namespace moonshard::test {
namespace {

TEST_CASE("reductions of constants that are as long as a shard") {
  const auto ones = [] { return at::ones_like(Piece(1, {2, 4})); };
  Run({
      {"sum over the dim", "partial", [&] { return ones().sum(1); }},
      {"sum of all", "partial", [&] { return ones().sum(); }},
      {"sum over another dim, then over it", "partial", [&] { return ones().sum(0).sum(); }},
      {"sum of zeros", "shared",
       [&] {
         return at::zeros_like(Piece(1, {2, 4})).sum();
       }},
      {"count", "partial", [&] { return ones().count_nonzero(); }},
      {"count of a shard", "partial",
       [] {
         return Piece(1, {2, 4}).count_nonzero();
       }},
      {"count of terms", "fault: 'count_nonzero' of a partial tensor",
       [] {
         return Terms({2, 4}).count_nonzero();
       }},
      {"mean", "shared", [&] { return ones().mean(); }},
      {"maximum", "shared", [&] { return ones().amax(1); }},
      {"any", "shared", [&] { return ones().gt(0).any(); }},
      {"norm", "fault: 'linalg_vector_norm' of a constant", [&] { return at::linalg_vector_norm(ones()); }},
      {"norm of zeros", "shared",
       [] {
         return at::linalg_vector_norm(at::zeros_like(Piece(1, {2, 4})));
       }},
      {"logsumexp", "fault: 'logsumexp' of a constant", [&] { return ones().logsumexp(1); }},
      {"logsumexp over another dim", "shared", [&] { return ones().logsumexp(0); }},
      {"softmax", "fault: '_softmax' along dim 1 of a constant", [&] { return ones().softmax(1); }},
      {"prod", "unproven: aten::prod", [&] { return ones().prod(1); }},
      {"bincount", "unproven: aten::bincount", [&] { return ones().to(at::kLong).flatten().bincount(); }},
      {"product over the dim", "partial", [&] { return ones().mm(ones().t()); }},
      {"product over another dim, summed", "partial",
       [&] {
         return ones().t().mm(at::ones({2, 3})).sum(0);
       }},
      {"positions", "unproven: aten::nonzero", [&] { return at::nonzero(ones()); }},
  });
}

TEST_CASE("one number of values that are as long as a shard, with a gradient") {
  const auto values = [] { return at::ones_like(Piece(1, {2, 4})) * OneAxis::Same({1}).requires_grad_(); };
  Run({
      {"sum", "partial", [&] { return values().sum(1); }},
      {"mean", "unproven: aten::mean", [&] { return values().mean(1); }},
      {"mean of all", "unproven: aten::mean", [&] { return values().mean(); }},
      {"maximum", "unproven: aten::amax", [&] { return values().amax(1); }},
      {"mean over another dim", "shared", [&] { return values().mean(0); }},
      {"mean without a gradient", "shared", [&] { return values().detach().mean(1); }},
      {"mean where none is computed", "shared",
       [&] {
         const at::NoGradGuard guard;
         return values().mean(1);
       }},
  });
}

TEST_CASE("operators without a rule for constants that are as long as a shard") {
  const auto ones = [] { return at::ones_like(Piece(1, {2, 4, 3})); };
  Run({
      {"a convolution over channels", "unproven: aten::convolution",
       [&] {
         return at::conv1d(ones(), at::ones_like(Piece(1, {6, 4, 1})));
       }},
      {"a bag of as many ids", "unproven: aten::_embedding_bag",
       [] {
         const at::Tensor ids = at::ones_like(Piece(0, {4})).to(at::kLong);
         return std::get<0>(at::embedding_bag(Same({3, 2}), ids, Places({1})));
       }},
      {"a bilinear product", "unproven: aten::_trilinear",
       [&] {
         return at::bilinear(ones().transpose(1, 2), ones().transpose(1, 2), at::ones({5, 4, 4}));
       }},
  });
}

TEST_CASE("which dim of a constant is as long as a shard is followed") {
  const auto ones = [] { return at::ones_like(Piece(1, {2, 4, 3})); };
  Run({
      {"another dim", "shared", [&] { return ones().sum(2); }},
      {"transposed", "partial", [&] { return ones().transpose(1, 2).sum(2); }},
      {"permuted, the other", "shared",
       [&] {
         return ones().permute({2, 1, 0}).sum(2);
       }},
      {"a new dim in front", "partial", [&] { return ones().unsqueeze(0).sum(2); }},
      {"a dim less", "partial", [&] { return ones().select(0, 1).sum(0); }},
      {"viewed", "partial",
       [&] {
         return ones().view({2, 2, 2, 3}).sum(1);
       }},
      {"viewed, within", "shared",
       [&] {
         return ones().view({2, 2, 2, 3}).sum(2);
       }},
      {"joined with others", "partial",
       [&] {
         return ones().view({8, 3}).sum(0);
       }},
      {"joined with elements that differ", "partial",
       [&] {
         return ones().cumsum(0).view({8, 3}).sum(0);
       }},
      {"broadcast", "partial",
       [&] {
         return (ones() + at::ones({5, 1, 1, 1})).sum(2);
       }},
      {"some of it", "shared", [&] { return ones().narrow(1, 0, 2).sum(1); }},
      {"all of it", "partial", [&] { return ones().narrow(1, 0, 4).sum(1); }},
      {"stacked", "partial",
       [&] {
         return at::stack({ones(), ones()}, 1).sum(2);
       }},
      {"concatenated along another dim", "partial",
       [&] {
         return at::cat({ones(), ones() * 2}, 0).sum(1);
       }},
      {"concatenated along it", "partial",
       [&] {
         return at::cat({ones(), ones() * 2}, 1).sum(1);
       }},
      {"concatenated with full ones", "fault: shards are concatenated with replicated tensors",
       [&] {
         return at::cat({ones(), at::ones({2, 4, 3})}, 1).sum(1);
       }},
      {"written in part", "partial",
       [&] {
         at::Tensor made = at::zeros_like(Piece(1, {2, 4, 3}));
         made.select(0, 1).fill_(2);
         return made.sum(1);
       }},
      {"with a shard", "shard(1)",
       [&] {
         return ones() * Piece(1, {2, 4, 3});
       }},
  });
}

TEST_CASE("memory that the host fills has no equal elements") {
  const auto memory = [] { return at::empty_like(Piece(1, {2, 4})); };
  Run({
      {"filled by an operator", "partial", [&] { return memory().fill_(2).sum(1); }},
      {"read", "unproven: aten::sum", [&] { return memory().sum(1); }},
      {"copied", "unproven: aten::clone", [&] { return memory().clone(); }},
      {"viewed, then read", "unproven: aten::add", [&] { return memory().t() + 1; }},
      {"written in part", "unproven: aten::sum",
       [&] {
         at::Tensor made = memory();
         made.select(0, 1).fill_(2);
         return made.sum(1);
       }},
      {"written at indices", "unproven: aten::sum",
       [&] { return memory().index_put_({Places({1})}, at::ones({1})).sum(1); }},
      {"read for its sizes", "partial", [&] { return at::ones_like(memory()).sum(1); }},
      {"of the full size, with a shard", "fault: a replicated tensor is combined with shards",
       [] {
         return at::empty({2, 4}) * Piece(1, {2, 4});
       }},
      {"of the full size", "shared",
       [] {
         return at::empty({2, 4}).sum(1);
       }},
  });
}

}  // namespace
}  // namespace moonshard::test
