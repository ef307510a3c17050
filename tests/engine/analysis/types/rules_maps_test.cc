// Rules of operators at which two shards meet: both words are "shard(1)", and the elements that the ranks hold are
// others.
#include <catch2/catch.hpp>

#include "tests/engine/analysis/types/typed.h"

namespace moonshard::test {
namespace {

// A shard of two parts, one after the other, of a dim that the ranks divide.
at::Tensor Parts(int64_t dim, at::IntArrayRef sizes) {
  const int64_t full = 2 * sizes[static_cast<size_t>(dim)];
  return OneAxis::As(at::rand(sizes), TypeOfLayout(Layout::PackedEqually(static_cast<int>(dim), 2), sizes, full, 2, 0));
}

at::Tensor OwnPlaces(at::IntArrayRef sizes) { return Piece(0, sizes).gt(-1).nonzero().select(1, 0); }

TEST_CASE("channels of grouped convolutions") {
  const auto depthwise = [](const at::Tensor& x, const at::Tensor& weight) {
    return at::conv1d(x, weight, {}, 1, 1, 1, x.size(1));
  };
  Run({
      {"the same channels", "shard(1)",
       [&] {
         return depthwise(Piece(1, {2, 4, 5}), Piece(0, {4, 1, 3}));
       }},
      {"the same parts", "packed(1, [2, 2])",
       [&] {
         return depthwise(Parts(1, {2, 4, 5}), Parts(0, {4, 1, 3}));
       }},
      {"the weight as one", "fault: shards of dim 1 that hold different elements",
       [&] {
         return depthwise(Parts(1, {2, 4, 5}), Piece(0, {4, 1, 3}));
       }},
      {"the input as one", "fault: shards of dim 1 that hold different elements",
       [&] {
         return depthwise(Piece(1, {2, 4, 5}), Parts(0, {4, 1, 3}));
       }},
      {"two channels of each group", "shard(1)",
       [] {
         return at::conv1d(Piece(1, {2, 4, 5}), Piece(0, {8, 2, 3}), {}, 1, 1, 1, 2);
       }},
      {"summed over, in other parts", "fault: shards of dim 1 that hold different elements",
       [] {
         return at::conv1d(Parts(1, {2, 4, 5}), Piece(1, {6, 4, 3}));
       }},
      {"a bias in other parts", "fault: shards of dim 1 that hold different elements",
       [] {
         return at::conv1d(Same({2, 3, 5}), Piece(0, {4, 3, 3}), Parts(0, {4}));
       }},
  });
}

TEST_CASE("a mask of attention") {
  const auto attend = [](const at::Tensor& heads, const at::Tensor& mask) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(heads, heads, heads, 0, false, mask));
  };
  Run({
      {"the same for all heads", "shard(1)",
       [&] {
         return attend(Piece(1, {2, 4, 3, 8}), Same({1, 1, 3, 3}));
       }},
      {"of the same heads", "shard(1)",
       [&] {
         return attend(Piece(1, {2, 4, 3, 8}), Piece(1, {2, 4, 3, 3}));
       }},
      {"of other heads", "fault: shards of dim 1 that hold different elements",
       [&] {
         return attend(Piece(1, {2, 4, 3, 8}), Parts(1, {2, 4, 3, 3}));
       }},
      {"of keys in shards", "fault: attention on shards along dim 3",
       [&] {
         return attend(Piece(1, {2, 4, 3, 8}), Piece(3, {2, 1, 3, 3}));
       }},
      {"terms of one", "fault: attention on a partial tensor",
       [&] {
         return attend(Same({2, 4, 3, 8}), Terms({2, 1, 3, 3}));
       }},
  });
}

TEST_CASE("attention with fewer heads of keys than of queries") {
  const auto attend = [](const at::Tensor& queries, const at::Tensor& keys) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(queries, keys, keys, 0, false));
  };
  Run({
      {"those of the queries", "shard(1)",
       [&] {
         return attend(Piece(1, {2, 4, 3, 8}), Piece(1, {2, 2, 3, 8}));
       }},
      {"others", "fault: shards of dim 1 that hold different elements",
       [&] {
         return attend(Parts(1, {2, 4, 3, 8}), Piece(1, {2, 2, 3, 8}));
       }},
      {"all keys, and some queries", "fault: a replicated tensor is combined with shards along dim 1",
       [&] {
         return attend(Piece(1, {2, 4, 3, 8}), Same({2, 4, 3, 8}));
       }},
  });
}

TEST_CASE("numbers around a tensor") {
  Run({
      {"beside a shard", "shard(1)",
       [] {
         return at::constant_pad_nd(Piece(1, {2, 3}), {0, 0, 1, 1});
       }},
      {"at the end of one", "fault: dim 1 is padded",
       [] {
         return at::constant_pad_nd(Piece(1, {2, 3}), {0, 1});
       }},
      {"zeros around terms", "partial",
       [] {
         return at::constant_pad_nd(Terms({2, 3}), {0, 1});
       }},
      {"ones around terms", "fault: a partial tensor is padded",
       [] {
         return at::constant_pad_nd(Terms({2, 3}), {0, 1}, 1);
       }},
  });
}

// What a data-parallel rank does with its own rows is its own step.
TEST_CASE("a sort of a data-parallel rank's own rows is no fault, and of tp's is one") {
  for (const MeshAxis axis : {MeshAxis::kDpShard, MeshAxis::kTp}) {
    OperatorChecker checker({{axis, 2, 0}}, RuleTable::BuiltIn());
    const at::Tensor x = Piece(0, {4});
    at::Tensor sorted;
    {
      const OperatorScope scope(checker);
      sorted = std::get<0>(x.sort());
    }
    CHECK(checker.faults().size() == (axis == MeshAxis::kTp ? 1U : 0U));
    CHECK(checker.Get(sorted)[0].is(axis == MeshAxis::kTp ? TypeKind::kFaulty : TypeKind::kVarying));
  }
}

TEST_CASE("a count of a data-parallel rank's own rows may be compared, and a loss on the way may not") {
  for (const bool gradient : {false, true}) {
    OperatorChecker checker({{MeshAxis::kDpShard, 2, 0}}, RuleTable::BuiltIn());
    const at::Tensor x = Piece(0, {4}).set_requires_grad(gradient);
    {
      const OperatorScope scope(checker);
      x.sum().sqrt();
    }
    CHECK(checker.faults().size() == (gradient ? 1U : 0U));
  }
}

TEST_CASE("places, rows and targets in shards") {
  Run({
      {"elements at places, in other parts", "fault: shards of dim 1 that hold different elements",
       [] {
         return Piece(1, {3, 4}).gather(0, Parts(1, {3, 4}).mul(0).to(at::kLong));
       }},
      {"rows added to others", "fault: shards of dim 1 that hold different elements",
       [] {
         return at::index_add(Piece(1, {3, 4}), 0, Places({2}), Parts(1, {2, 4}));
       }},
      {"targets of the same rows", "shard(0)",
       [] {
         return at::nll_loss(Piece(0, {4, 5}), Piece(0, {4}).mul(0).to(at::kLong), {}, at::Reduction::None);
       }},
      {"targets of other rows", "fault: shards of dim 0 that hold different elements",
       [] {
         return at::nll_loss(Parts(0, {4, 5}), Piece(0, {4}).mul(0).to(at::kLong));
       }},
      {"vectors in other parts", "fault: shards of dim 0 that hold different elements",
       [] { return at::dot(Piece(0, {4}), Parts(0, {4})); }},
      {"a rank's own places", "shard(0)",
       [] {
         return Piece(0, {4, 3}).index({OwnPlaces({4})});
       }},
      {"global places along the sharded dim, behind a full one", "fault: global indices are used on a local shard",
       [] {
         return at::index(Piece(1, {3, 4}), c10::List<std::optional<at::Tensor>>({std::nullopt, Places({2})}));
       }},
      {"global places along the full dim, behind the sharded one", "shard(0)",
       [] {
         return at::index(Piece(0, {4, 3}), c10::List<std::optional<at::Tensor>>({std::nullopt, Places({2})}));
       }},
      {"places of several dims between full ones", "shard(3)",
       [] {
         return at::index(Piece(2, {3, 5, 4}), c10::List<std::optional<at::Tensor>>({std::nullopt, Places({2, 2})}));
       }},
      {"places of dims that are not adjacent", "shard(1)",
       [] {
         return at::index(Piece(1, {3, 4, 5}),
                          c10::List<std::optional<at::Tensor>>({Places({2}), std::nullopt, Places({2})}));
       }},
      {"a rank's own places along a dim that is not sharded",
       "fault: sharded indices write into a tensor that is sharded along a dim that they do not index",
       [] {
         return Piece(1, {4, 3}).index_put({OwnPlaces({4})}, at::zeros({4, 3}));
       }},
      {"places of which nothing is known", "unproven: aten::index.Tensor: it is not known whether the indices",
       [] {
         return Piece(0, {4, 3}).index({Piece(0, {4}).mul(0).to(at::kLong)});
       }},
      {"and selected", "unproven: aten::index_select: it is not known whether the indices",
       [] {
         return Piece(0, {4, 3}).index_select(0, Piece(0, {4}).mul(0).to(at::kLong));
       }},
  });
}

// A shard of a mask, of global indices, and of elements that the mask chose.
at::Tensor OwnMask(int64_t dim, at::IntArrayRef sizes) { return Piece(dim, sizes).gt(0.5); }
at::Tensor OwnIds(int64_t size) { return Piece(0, {size}).mul(0).to(at::kLong); }
at::Tensor OfMask(const at::Tensor& x, const at::Tensor& mask) { return x.index({mask}); }

TEST_CASE("local and global indices") {
  Run({
      {"global rows and local columns write into sharded rows",
       "fault: global indices are used on a local shard of dim 0",
       [] {
         return Piece(0, {4, 4}).index_put({Places({1}), OwnPlaces({4})}, at::ones({}));
       }},
      {"local rows and columns of a replicated tensor",
       "fault: indices into the shard of each rank are used along dim 0",
       [] {
         return Same({8, 3}).index_select(0, OwnPlaces({4}));
       }},
      {"global ids that a mask chose, into a sharded table", "unproven: aten::index.Tensor: it is not known whether",
       [] {
         return Piece(0, {4, 3}).index({OfMask(OwnIds(4), OwnMask(0, {4}))});
       }},
      {"global ids that a mask chose, into a replicated table", "shard(0)",
       [] {
         return Same({8, 3}).index({OfMask(OwnIds(4), OwnMask(0, {4}))});
       }},
      {"local indices of a packed shard, in a plain shard", "fault: indices into a shard are used on a shard of dim 0",
       [] {
         return Piece(0, {4, 3}).index({Parts(0, {4}).gt(-1).nonzero().select(1, 0)});
       }},
      {"local indices of a packed shard, in the same packed shard", "shard(0)",
       [] {
         return Parts(0, {4, 3}).index({Parts(0, {4}).gt(-1).nonzero().select(1, 0)});
       }},
      {"elements of two packed masks", "unproven: aten::add.Tensor: it is not known which elements",
       [] {
         const at::Tensor x = Parts(0, {4, 3});
         return OfMask(x, Parts(0, {4}).gt(-1)) + OfMask(x, Parts(0, {4}).gt(-2));
       }},
      {"elements at the same packed indices", "shard(0)",
       [] {
         const at::Tensor x = Parts(0, {4, 3});
         const at::Tensor places = Parts(0, {4}).gt(-1).nonzero().squeeze(1);
         return x.index({places}) + x.index_select(0, places);
       }},
      {"the local column of a mask of two dims", "shard(0)",
       [] {
         return Piece(0, {4, 3}).index({OwnMask(1, {2, 4}).nonzero().select(1, 1)});
       }},
      {"the other column, in a replicated tensor", "shard(0)",
       [] {
         return Same({2, 3}).index({OwnMask(1, {2, 4}).nonzero().select(1, 0)});
       }},
      {"computed from local indices",
       "unproven: aten::add.Scalar: indices into the shard of each rank are used as values",
       [] { return OwnPlaces({4}) + 1; }},
      {"an embedding at local indices", "unproven: aten::embedding: indices into the shard",
       [] {
         return at::embedding(Same({8, 3}), OwnPlaces({4}));
       }},
      {"the mean of elements that a mask chose", "fault: 'mean' over uneven shards",
       [] {
         return OfMask(Piece(0, {4, 3}), OwnMask(0, {4})).mean(0);
       }},
      {"zeros at a mask that is sharded along its second dim", "shard(1)",
       [] {
         return at::zeros({2, 4, 3}).index_put({OwnMask(1, {2, 4})}, at::ones({}));
       }},
      {"a row written at a sharded mask", "shard(0)",
       [] {
         return Piece(0, {4, 3}).index_put({OwnMask(0, {4})}, Same({3}));
       }},
      {"rows written at a sharded mask", "fault: the indices are sharded, but the values are not",
       [] {
         const at::Tensor mask = Piece(0, {4}).gt(-1);
         return Piece(0, {4, 3}).index_put({mask}, Same({4, 3}));
       }},
      {"a constant with rows written at a sharded mask", "shard(0)",
       [] {
         const at::Tensor mask = Piece(0, {4}).gt(-1);
         return at::full({4, 3}, -1.0).index_put({mask}, Piece(0, {4, 3}));
       }},
      {"zeros of the full size, at local indices",
       "fault: indices into the shard of each rank are used along dim 0, which",
       [] {
         return at::zeros({8, 3}).index_put({OwnPlaces({4})}, at::ones({}));
       }},
      {"elements gathered by fewer indices", "fault: the indices are shorter than the tensor along the sharded dim 0",
       [] {
         return Piece(0, {4, 3}).gather(1, Piece(0, {2, 3}).mul(0).to(at::kLong));
       }},
      {"a number written into all columns", "shard(1)",
       [] {
         return Piece(1, {4, 3}).index_put({Places({2})}, at::ones({}));
       }},
  });
}

TEST_CASE("every few elements of a shard, and orders of all elements") {
  Run({
      {"pairs of which the ranks hold whole ones", "shard(1)",
       [] {
         return Piece(1, {2, 6}).slice(1, 1, 6, 2);
       }},
      {"meet the other of each pair", "shard(1)",
       [] {
         const at::Tensor x = Piece(1, {2, 6});
         return x.slice(1, 0, 6, 2) * x.slice(1, 1, 6, 2);
       }},
      {"of a fused dim", "unproven: aten::slice.Tensor: a strided slice",
       [] {
         return Parts(1, {2, 4}).slice(1, 0, 4, 2);
       }},
      {"every third of pairs", "unproven: aten::slice.Tensor: a strided slice",
       [] {
         return Piece(1, {2, 4}).slice(1, 0, 4, 3);
       }},
      {"across the sharded dim", "shard(1)",
       [] {
         return Piece(1, {4, 4}).slice(0, 0, 4, 2);
       }},
      {"all elements rolled", "fault: the elements are reordered",
       [] {
         return Piece(1, {2, 4}).roll(1);
       }},
      {"a triangle in shards", "fault: the triangular part of a matrix",
       [] {
         return Piece(1, {4, 4}).tril();
       }},
      {"a triangle of each head", "shard(0)",
       [] {
         return Piece(0, {2, 4, 4}).tril();
       }},
  });
}

TEST_CASE("terms of a sum beside others") {
  Run({
      {"terms of a mean and of a sum", "unproven: aten::add.Tensor: a partial mean is combined with a partial sum",
       [] { return Piece(0, {4}).mean() + Piece(0, {4}).sum(); }},
      {"terms chosen by a condition in shards", "fault: a partial tensor is combined with shards",
       [] { return at::where(Piece(0, {4}).gt(0), Terms({4}), Terms({4})); }},
      {"a norm's weight", "fault: the weight or bias of a norm is partial",
       [] {
         return at::layer_norm(Same({2, 4}), {4}, Terms({4}), Same({4}));
       }},
  });
}

}  // namespace
}  // namespace moonshard::test
