// The rules of operators that look across elements: sums, places, attention, norms, losses.
#include <catch2/catch.hpp>

#include <functional>

#include "tests/engine/analysis/types/typed.h"

namespace moonshard::test {
namespace {

TEST_CASE("many elements made one") {
  Run({
      {"a sum over shards", "partial",
       [] {
         return Piece(1, {2, 3}).sum(1);
       }},
      {"over another dim", "shard(0)",
       [] {
         return Piece(1, {2, 3}).sum(0);
       }},
      {"kept", "shard(1)",
       [] {
         return Piece(1, {2, 3}).sum(0, true);
       }},
      {"of all", "partial",
       [] {
         return Piece(1, {2, 3}).sum();
       }},
      {"a mean over shards", "partial mean",
       [] {
         return Piece(1, {2, 3}).mean(1);
       }},
      {"a mean over shards of different lengths", "fault: 'mean' over uneven shards along dim 1",
       [] {
         return Uneven(1, {2, 3}).mean(1);
       }},
      {"a mean over all of them", "fault: 'mean' over uneven shards along dim 1",
       [] {
         return Uneven(1, {2, 3}).mean();
       }},
      {"a sum over shards of different lengths", "partial",
       [] {
         return Uneven(1, {2, 3}).sum(1);
       }},
      {"a mean over another dim of such shards", "shard(0)",
       [] {
         return Uneven(1, {2, 3}).mean(0);
       }},
      {"such shards meet others", "fault: shards of dim 1 that hold different elements",
       [] {
         return (Uneven(1, {2, 3}) * Piece(1, {2, 3})).relu().mean(1);
       }},
      {"a mean of a product with such a weight", "fault: 'mean' over uneven shards",
       [] {
         return at::mm(Same({2, 3}), Uneven(1, {3, 4})).mean(1);
       }},
      {"a mean of rows of such shards put together", "fault: 'mean' over uneven shards",
       [] {
         return at::cat({Uneven(1, {2, 3}), Uneven(1, {2, 3})}, 0).mean(1);
       }},
      {"rows of such shards and others put together", "fault: shards of dim 1 that hold different elements",
       [] {
         return at::cat({Uneven(1, {2, 3}), Piece(1, {2, 3})}, 0);
       }},
      {"a mean of such shards, flattened", "fault: 'mean' over uneven shards",
       [] {
         return Uneven(1, {2, 3, 4}).view({6, 4}).mean(0);
       }},
      {"the largest of shards", "fault: 'amax' over dim 1",
       [] {
         return Piece(1, {2, 3}).amax(1);
       }},
      {"the largest of another dim", "shard(0)",
       [] {
         return Piece(1, {2, 3}).amax(0);
       }},
      {"a norm of shards", "fault: 'linalg_vector_norm' over dim 0",
       [] { return at::linalg_vector_norm(Piece(0, {3})); }},
      {"a norm of terms", "fault: 'linalg_vector_norm' of a partial tensor",
       [] { return at::linalg_vector_norm(Terms({3})); }},
      {"softmax along shards", "fault: '_softmax' along dim 1",
       [] {
         return at::softmax(Piece(1, {2, 3}), 1);
       }},
      {"softmax of shards", "shard(0)",
       [] {
         return at::softmax(Piece(0, {2, 3}), 1);
       }},
      {"softmax of terms", "fault: '_softmax' of a partial tensor",
       [] {
         return at::softmax(Terms({2, 3}), 1);
       }},
      {"the best of shards", "fault: 'topk' along dim 1",
       [] {
         return std::get<0>(at::topk(Piece(1, {2, 3}), 1));
       }},
  });
}

TEST_CASE("lists of tensors, one by one") {
  Run({
      {"pieces", "shard(0)",
       [] {
         return at::_foreach_add({Same({2}), Piece(0, {2})}, {Same({2}), Piece(0, {2})})[1];
       }},
      {"terms and whole values", "fault: a partial tensor is added to a replicated tensor",
       [] {
         return at::_foreach_add({Same({2}), Terms({2})}, {Same({2}), Same({2})})[1];
       }},
      {"terms times a number", "partial",
       [] {
         return at::_foreach_mul({Terms({2}), Same({2})}, 2)[0];
       }},
      {"a root of terms", "fault: a nonlinear operator", [] { return at::_foreach_sqrt({Terms({2})})[0]; }},
      {"norms of terms", "fault: a norm of a tensor that is not replicated",
       [] { return at::_foreach_norm({Terms({2})})[0]; }},
  });
}

TEST_CASE("places") {
  Run({
      {"a lookup", "shared",
       [] {
         return at::embedding(Same({5, 3}), Places({2}));
       }},
      {"in columns", "shard(2)",
       [] {
         return at::embedding(Piece(1, {5, 3}), Places({2, 4}));
       }},
      {"in rows", "fault: global ids are used on a local shard",
       [] {
         return at::embedding(Piece(0, {5, 3}), Places({2}));
       }},
      {"rows of an index", "shared",
       [] {
         return Same({5, 3}).index_select(0, Places({2}));
       }},
      {"rows of shards", "fault: global indices are used on a local shard of dim 0",
       [] {
         return Piece(0, {5, 3}).index_select(0, Places({2}));
       }},
      {"columns of shards", "shard(1)",
       [] {
         return Piece(1, {5, 3}).index_select(0, Places({2}));
       }},
      {"gathered along shards", "fault: global indices are used on a local shard of dim 1",
       [] {
         return Piece(1, {5, 3}).gather(1, Places({5, 1}));
       }},
      {"terms added to zeros", "partial",
       [] {
         return at::zeros({5, 3}).index_add(0, Places({2}), Terms({2, 3}));
       }},
      {"terms added to a value", "fault: partial slices are added to a tensor",
       [] {
         return Same({5, 3}).index_add(0, Places({2}), Terms({2, 3}));
       }},
  });
}

TEST_CASE("attention, norms and losses") {
  const auto attend = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
  };
  Run({
      {"heads", "shard(1)",
       [&] {
         return attend(Piece(1, {2, 3, 4, 8}), Piece(1, {2, 3, 4, 8}), Piece(1, {2, 3, 4, 8}));
       }},
      {"the sequence", "fault: attention on shards along dim 2",
       [&] {
         return attend(Piece(2, {2, 3, 4, 8}), Piece(2, {2, 3, 4, 8}), Piece(2, {2, 3, 4, 8}));
       }},
      {"terms", "fault: attention on a partial tensor",
       [&] {
         return attend(Terms({2, 3, 4, 8}), Same({2, 3, 4, 8}), Same({2, 3, 4, 8}));
       }},
      {"whole keys for some heads", "fault: a replicated tensor is combined with shards",
       [&] {
         return attend(Piece(1, {2, 3, 4, 8}), Same({2, 3, 4, 8}), Same({2, 3, 4, 8}));
       }},
      {"a norm of rows in shards", "shard(0)",
       [] {
         return at::layer_norm(Piece(0, {2, 3}), {3});
       }},
      {"a norm over shards", "fault: a norm over a sharded dim",
       [] {
         return at::layer_norm(Piece(1, {2, 3}), {3});
       }},
      {"a norm of terms", "fault: the input of a norm is partial",
       [] {
         return at::layer_norm(Terms({2, 3}), {3});
       }},
      {"a loss", "shared",
       [] {
         return at::cross_entropy_loss(Same({2, 3}), Places({2}));
       }},
      {"a loss on a shard of the classes", "fault",
       [] {
         return at::cross_entropy_loss(Piece(1, {2, 3}), Places({2}));
       }},
      {"a loss on a shard of the rows, of which a rank may ignore more than another",
       "unproven: aten::nll_loss_forward: the mean divides by the number",
       [] {
         return at::cross_entropy_loss(Piece(0, {2, 3}), Piece(0, {2}).mul(0).to(at::kLong));
       }},
      {"a sum of losses on a shard of the rows", "partial",
       [] {
         return at::cross_entropy_loss(Piece(0, {2, 3}), Piece(0, {2}).mul(0).to(at::kLong), {}, at::Reduction::Sum);
       }},
      {"weights of the classes in shards", "fault: the weights of the classes are not replicated",
       [] {
         return at::cross_entropy_loss(Same({2, 3}), Places({2}), Piece(0, {3}));
       }},
      {"a sum of binary losses on a shard of the rows", "partial",
       [] {
         return at::binary_cross_entropy(Piece(0, {2, 3}), Piece(0, {2, 3}), {}, at::Reduction::Sum);
       }},
      {"a mean loss on rows of different number", "fault: 'nll_loss_forward' over uneven shards",
       [] {
         return at::cross_entropy_loss(Uneven(0, {2, 3}), Uneven(0, {2}).mul(0).to(at::kLong));
       }},
      {"a sum of losses on rows of different number", "partial",
       [] {
         return at::mse_loss(Uneven(0, {2, 3}), Uneven(0, {2, 3}), at::Reduction::Sum);
       }},
      {"a number that differs between ranks", "fault: a number is read from a tensor",
       [] { return at::full({1}, Terms({1}).item<double>()); }},
  });
}

}  // namespace
}  // namespace moonshard::test
