// The rules, each by what it says of operators on shards, terms of sums and whole values.
#include <catch2/catch.hpp>

#include <functional>

#include "tests/engine/analysis/types/typed.h"

namespace moonshard::test {
namespace {

TEST_CASE("operators on each element") {
  Run({
      {"shards and shards", "shard(1)",
       [] {
         return Piece(1, {2, 3}) + Piece(1, {2, 3});
       }},
      {"shards and a row that is whole along them", "shard(0)",
       [] {
         return Piece(0, {2, 3}) * Same({3});
       }},
      {"shards and a whole row", "fault: a replicated tensor is combined with shards along dim 1",
       [] {
         return Piece(1, {2, 3}) * Same({3});
       }},
      {"shards along other dims", "fault: shards along different dims",
       [] {
         return Piece(1, {3, 3}) + Piece(0, {3, 3});
       }},
      {"shards and zeros", "shard(1)",
       [] {
         return Piece(1, {2, 3}) + at::zeros({2, 3});
       }},
      {"shards and a number", "shard(1)",
       [] {
         return Piece(1, {2, 3}) + 2;
       }},
      {"terms and terms", "partial", [] { return Terms({2}) - Terms({2}); }},
      {"terms and a whole value", "fault: a partial tensor is added to a replicated tensor",
       [] { return Terms({2}) + Same({2}); }},
      {"terms and zeros", "partial", [] { return Terms({2}) + at::zeros({2}); }},
      {"terms and ones", "fault: a partial tensor is added to a replicated tensor",
       [] { return Terms({2}) + at::ones({2}); }},
      {"terms and a number", "fault: a number is added", [] { return Terms({2}) + 2; }},
      {"terms and shards", "fault: a partial tensor is combined with shards",
       [] { return Terms({2}) + Piece(0, {2}); }},
      {"terms times a whole value", "partial", [] { return Terms({2}) * Same({2}); }},
      {"terms times a number", "partial", [] { return Terms({2}) * 2; }},
      {"terms times terms", "fault: two partial tensors are multiplied", [] { return Terms({2}) * Terms({2}); }},
      {"over terms", "fault: the divisor is a partial tensor", [] { return Same({2}) / Terms({2}); }},
      {"terms over a value", "partial", [] { return Terms({2}) / Same({2}); }},
      {"a function of terms", "fault: a nonlinear operator", [] { return Terms({2}).exp(); }},
      {"a function of shards", "shard(0)", [] { return at::silu(Piece(0, {2})); }},
      {"terms, masked to zero", "partial", [] { return Terms({2}).masked_fill(Same({2}).gt(0), 0); }},
      {"terms, masked to one", "fault: a partial tensor is filled with a value",
       [] { return Terms({2}).masked_fill(Same({2}).gt(0), 1); }},
      {"a + b c of terms", "partial", [] { return at::addcmul(Terms({2}), Terms({2}), Same({2})); }},
      {"a + b c of terms and terms", "fault: two partial tensors are multiplied",
       [] { return at::addcmul(Terms({2}), Terms({2}), Terms({2})); }},
      {"written in place", "partial", [] { return Terms({2}).add_(Terms({2})); }},
      {"copied over", "shard(0)", [] { return Same({2}).copy_(Piece(0, {2})); }},
      {"to another dtype", "shard(1)",
       [] {
         return Piece(1, {2, 2}).to(at::kDouble);
       }},
  });
}

TEST_CASE("views") {
  Run({
      {"rows before the shards flattened into them", "shard(0) after 4",
       [] {
         return Piece(1, {4, 3, 5}).view({12, 5});
       }},
      {"and opened again", "shard(1)",
       [] {
         return Piece(1, {4, 3, 5}).view({12, 5}).view({4, 3, 5});
       }},
      {"heads", "shard(2)",
       [] {
         return Piece(2, {2, 3, 8}).view({2, 3, 4, 2});
       }},
      {"heads joined", "shard(2)",
       [] {
         return Piece(2, {2, 3, 4, 2}).view({2, 3, 8});
       }},
      {"one head", "shard(2)",
       [] {
         return Piece(2, {2, 3, 4}).view({2, 3, 1, 4});
       }},
      {"one row of the sequence, flattened into the batch", "shard(0) after 2",
       [] {
         return Piece(1, {2, 1, 5}).view({2, 5});
       }},
      {"and opened again", "shard(1)",
       [] {
         return Piece(1, {2, 1, 5}).view({2, 5}).view({2, 1, 5});
       }},
      {"one head joined with its dims", "shard(2)",
       [] {
         return Piece(2, {2, 3, 4}).view({2, 3, 1, 4}).view({2, 3, 4});
       }},
      {"shards cut in two", "fault: a view cuts across",
       [] {
         return Piece(1, {2, 6}).view({3, 4});
       }},
      {"transposed", "shard(2)",
       [] {
         return Piece(1, {2, 3, 4}).transpose(1, 2);
       }},
      {"permuted", "shard(0)",
       [] {
         return Piece(2, {2, 3, 4}).permute({2, 0, 1});
       }},
      {"unsqueezed before", "shard(2)",
       [] {
         return Piece(1, {2, 3}).unsqueeze(1);
       }},
      {"unsqueezed behind", "shard(1)",
       [] {
         return Piece(1, {2, 3}).unsqueeze(2);
       }},
      {"squeezed", "shard(1)",
       [] {
         return Piece(2, {2, 1, 3}).squeeze(1);
       }},
      {"expanded", "shard(1)",
       [] {
         return Piece(0, {3}).expand({2, 3});
       }},
      {"elements of another dim", "shard(1)",
       [] {
         return Piece(1, {4, 3}).narrow(0, 1, 2);
       }},
      {"elements of the shards", "fault: elements of dim 1 are taken by global index",
       [] {
         return Piece(1, {4, 3}).narrow(1, 0, 2);
       }},
      {"all of them", "shard(1)",
       [] {
         return Piece(1, {4, 3}).narrow(1, 0, 3);
       }},
      {"one of the shards", "fault: one element of dim 1 is taken",
       [] {
         return Piece(1, {4, 3}).select(1, 0);
       }},
      {"one of another dim", "shard(0)",
       [] {
         return Piece(1, {4, 3}).select(0, 1);
       }},
      {"split between shards", "fault: elements of dim",
       [] {
         return Piece(1, {4, 4}).chunk(2, 1)[0];
       }},
      {"as complex numbers", "shard(1)",
       [] {
         return at::view_as_complex(Piece(1, {4, 3, 2}));
       }},
      {"as complex numbers, in halves", "fault: the real and the imaginary part",
       [] {
         return at::view_as_complex(Piece(2, {4, 3, 2}));
       }},
      {"complex numbers as pairs", "shard(0)",
       [] {
         return at::view_as_real(at::view_as_complex(Piece(0, {4, 3, 2})));
       }},
      {"a dim of one element, copied", "fault: dim 0 has shards of one element",
       [] {
         return Piece(0, {1, 3}).expand({4, 3});
       }},
      {"a box of it by strides", "shard(0)",
       [] {
         return Piece(1, {4, 3, 2}).as_strided({3, 2}, {2, 1}, 6);
       }},
      {"a part of the shard by strides", "unproven: aten::as_strided",
       [] {
         return Piece(1, {4, 3, 2}).as_strided({4, 2, 2}, {6, 2, 1});
       }},
      {"flipped", "fault: dim 1 is reordered",
       [] {
         return Piece(1, {4, 3}).flip({1});
       }},
  });
}

TEST_CASE("fused shards are taken apart where they were put together") {
  AxisType fused = AxisType::Shard(1, 8);
  fused.parts = {4, 2, 2};
  const auto make = [&] { return OneAxis::As(at::rand({3, 8}), fused); };
  Run({
      {"a part", "shard(1)", [&] { return make().narrow(1, 0, 4); }},
      {"two parts", "packed(1, [", [&] { return make().narrow(1, 4, 4); }},
      {"across parts", "fault: elements of dim 1 are taken across its fused parts",
       [&] { return make().narrow(1, 0, 5); }},
      {"split at the parts", "shard(1)",
       [&] {
         return make().split_with_sizes({4, 2, 2}, 1)[1];
       }},
      {"as heads", "packed(1, [",
       [&] {
         return make().view({3, 4, 2});
       }},
      {"a part of the heads", "shard(1)",
       [&] {
         return make().view({3, 4, 2}).narrow(1, 2, 1);
       }},
      {"as heads across parts", "fault: a view cuts across",
       [&] {
         return make().view({3, 2, 4}).narrow(1, 0, 1);
       }},
      {"put together", "packed(1, [",
       [] {
         return at::cat({Piece(1, {3, 2}), Piece(1, {3, 4})}, 1);
       }},
  });
}

TEST_CASE("tensors put together") {
  Run({
      {"shards along another dim", "shard(0)",
       [] {
         return at::cat({Piece(0, {2, 3}), Piece(0, {2, 3})}, 1);
       }},
      {"shards and a whole tensor", "fault: a replicated tensor is concatenated",
       [] {
         return at::cat({Piece(0, {2, 3}), Same({2, 3})}, 1);
       }},
      {"terms", "partial",
       [] {
         return at::cat({Terms({2}), Terms({2})});
       }},
      {"terms and a whole tensor", "fault: a partial tensor is concatenated",
       [] {
         return at::cat({Terms({2}), Same({2})});
       }},
      {"stacked", "shard(1)",
       [] {
         return at::stack({Piece(0, {2}), Piece(0, {2})});
       }},
  });
}

TEST_CASE("gradients of a norm whose input needs none") {
  const auto gradients = [](const at::Tensor& gradient, const at::Tensor& x) {
    return at::native_layer_norm_backward(gradient, x, {4}, Piece(0, {2, 1}), Piece(0, {2, 1}), Same({4}), Same({4}),
                                          {false, true, true});
  };
  Run({
      {"of the weight", "partial",
       [&] {
         return std::get<1>(gradients(Piece(0, {2, 4}), Piece(0, {2, 4})));
       }},
      {"of the bias", "partial",
       [&] {
         return std::get<2>(gradients(Piece(0, {2, 4}), Piece(0, {2, 4})));
       }},
  });
}

TEST_CASE("the gradient of features that are summed is the same for all of them") {
  Run({
      {"of a weight, as a shard of its rows", "shard(0)",
       [] {
         const at::Tensor gradient = Same({1, 1}).expand({3, 5});
         return gradient.t().mm(Same({3, 4})) + Piece(0, {5, 4});
       }},
  });
}

TEST_CASE("products of matrices") {
  Run({
      {"columns", "shard(1)",
       [] {
         return at::mm(Same({2, 3}), Piece(1, {3, 4}));
       }},
      {"rows", "shard(0)",
       [] {
         return at::mm(Piece(0, {2, 3}), Same({3, 4}));
       }},
      {"inner", "partial",
       [] {
         return at::mm(Piece(1, {2, 3}), Piece(0, {3, 4}));
       }},
      {"inner on one side", "fault: the contracted dim is sharded in the left operand",
       [] {
         return at::mm(Piece(1, {2, 3}), Same({3, 4}));
       }},
      {"rows and columns", "fault: the rows of one matrix and the columns of the other",
       [] {
         return at::mm(Piece(0, {2, 3}), Piece(1, {3, 4}));
       }},
      {"terms", "partial",
       [] {
         return at::mm(Terms({2, 3}), Same({3, 4}));
       }},
      {"terms and shards", "fault: a partial tensor is combined with shards",
       [] {
         return at::mm(Terms({2, 3}), Piece(1, {3, 4}));
       }},
      {"a batch", "shard(0)",
       [] {
         return at::bmm(Piece(0, {2, 3, 4}), Piece(0, {2, 4, 5}));
       }},
      {"a bias on terms", "fault: the bias is added to a partial tensor",
       [] {
         return at::addmm(Same({4}), Piece(1, {2, 3}), Piece(0, {3, 4}));
       }},
      {"a bias in shards", "shard(1)",
       [] {
         return at::addmm(Piece(0, {4}), Same({2, 3}), Piece(1, {3, 4}));
       }},
      {"a whole bias on columns", "fault: a replicated tensor is combined with shards",
       [] {
         return at::addmm(Same({4}), Same({2, 3}), Piece(1, {3, 4}));
       }},
      {"linear", "shard(2)",
       [] {
         return at::linear(Same({2, 3, 4}), Piece(0, {5, 4}));
       }},
      {"linear on the sequence's shards", "shard(1)",
       [] {
         return at::linear(Piece(1, {2, 3, 4}), Same({5, 4}));
       }},
      {"a gradient of a weight from shards of the sequence", "partial",
       [] {
         return at::mm(Piece(1, {2, 3, 4}).view({6, 4}).t(), Piece(1, {2, 3, 5}).view({6, 5}));
       }},
  });
}

// What differs between ranks without a layout.
at::Tensor Own(at::IntArrayRef sizes) { return OneAxis::As(at::rand(sizes), AxisType::Of(TypeKind::kVarying)); }

TEST_CASE("products with vectors") {
  Run({
      {"rows", "shard(0)",
       [] {
         return at::mv(Piece(0, {2, 3}), Same({3}));
       }},
      {"inner", "partial",
       [] {
         return at::mv(Piece(1, {2, 3}), Piece(0, {3}));
       }},
      {"inner on one side", "fault: the contracted dim is sharded in the left operand",
       [] {
         return at::mv(Piece(1, {2, 3}), Same({3}));
       }},
      {"a sum over shards", "partial",
       [] {
         return at::mv(Piece(1, {2, 3}), at::ones({3}));
       }},
      {"terms", "partial",
       [] {
         return at::mv(Terms({2, 3}), Same({3}));
       }},
      {"each rank's own matrix", "varying",
       [] {
         return at::mv(Own({2, 3}), Same({3}));
       }},
      {"each rank's own vector and shards", "varying",
       [] {
         return at::mv(Piece(0, {2, 3}), Own({3}));
       }},
      {"vectors in shards", "partial", [] { return at::dot(Piece(0, {3}), Piece(0, {3})); }},
      {"vectors of which one is in shards", "fault: the contracted dim is sharded in the right operand",
       [] { return at::dot(Same({3}), Piece(0, {3})); }},
      {"each rank's own vectors", "varying", [] { return at::dot(Own({3}), Own({3})); }},
      {"terms of vectors", "fault: two partial tensors are multiplied", [] { return at::dot(Terms({3}), Terms({3})); }},
  });
}

TEST_CASE("a bias that adds nothing to a product") {
  Run({
      {"is not read", "partial",
       [] {
         return at::addmm(Same({4}), Piece(1, {2, 3}), Piece(0, {3, 4}), 0);
       }},
      {"is zero", "partial",
       [] {
         return at::addmm(at::zeros({4}), Piece(1, {2, 3}), Piece(0, {3, 4}));
       }},
      {"is not read, by its columns", "shard(1)",
       [] {
         return at::addmm(Same({4}), Same({2, 3}), Piece(1, {3, 4}), 0);
       }},
  });
}

// Three groups of rows, which end before rows 2, 3 and 6.
at::Tensor Bounds() { return OneAxis::As(at::tensor({2, 3, 6}, at::kInt), AxisType::Replicate()); }
at::Tensor Grouped(const at::Tensor& a, const at::Tensor& b) { return at::_grouped_mm(a, b, Bounds()); }

TEST_CASE("products of groups") {
  Run({
      {"columns", "shard(1)",
       [] {
         return Grouped(Same({6, 4}), Piece(2, {3, 4, 8}));
       }},
      {"inner", "partial",
       [] {
         return Grouped(Piece(1, {6, 4}), Piece(1, {3, 4, 8}));
       }},
      {"inner on one side", "fault: the contracted dim is sharded in the left operand",
       [] {
         return Grouped(Piece(1, {6, 4}), Same({3, 4, 8}));
       }},
      {"terms", "partial",
       [] {
         return Grouped(Terms({6, 4}), Same({3, 4, 8}));
       }},
      {"whole", "shared",
       [] {
         return Grouped(Same({6, 4}), Same({3, 4, 8}));
       }},
      {"rows in shards", "fault: the rows are sharded",
       [] {
         return Grouped(Piece(0, {6, 4}), Same({3, 4, 8}));
       }},
      {"groups in shards", "fault: the groups are sharded",
       [] {
         return Grouped(Same({6, 4}), Piece(0, {3, 4, 8}));
       }},
      {"bounds in shards", "unproven: aten::_grouped_mm",
       [] {
         return at::_grouped_mm(Same({6, 4}), Same({3, 4, 8}),
                                OneAxis::As(at::tensor({2, 3, 6}, at::kInt), AxisType::Shard(0, 3)));
       }},
      {"the gradient of a weight with its columns in shards", "shard(2)",
       [] {
         return Grouped(Same({8, 4}).t(), Piece(1, {8, 4}));
       }},
      {"the gradient of a weight with its rows in shards", "shard(1)",
       [] {
         return Grouped(Piece(1, {8, 4}).t(), Same({8, 4}));
       }},
      {"the gradient of a weight from terms", "partial",
       [] {
         return Grouped(Same({8, 4}).t(), Terms({8, 4}));
       }},
      {"the gradient of a weight from rows in shards", "fault: the rows are sharded",
       [] {
         return Grouped(Piece(0, {8, 4}).t(), Piece(0, {8, 4}));
       }},
      {"a batch of matrices", "shard(0)",
       [] {
         return at::_grouped_mm(Piece(0, {3, 4, 4}), Piece(0, {3, 4, 8}));
       }},
  });
}

at::Tensor Solve(const at::Tensor& a, const at::Tensor& b, bool left = true) {
  return at::linalg_solve_triangular(a, b, /*upper=*/false, left, /*unitriangular=*/true);
}

TEST_CASE("triangular matrices") {
  Run({
      {"heads", "shard(0)",
       [] {
         return Solve(Piece(0, {2, 3, 3}), Piece(0, {2, 3, 4}));
       }},
      {"columns", "shard(2)",
       [] {
         return Solve(Same({2, 3, 3}), Piece(2, {2, 3, 4}));
       }},
      {"from the right", "shard(1)",
       [] {
         return Solve(Same({2, 3, 3}), Piece(1, {2, 4, 3}), false);
       }},
      {"rows", "fault: the dim along which the triangular system is solved",
       [] {
         return Solve(Same({2, 3, 3}), Piece(1, {2, 3, 4}));
       }},
      {"columns from the right", "fault: the dim along which the triangular system is solved",
       [] {
         return Solve(Same({2, 3, 3}), Piece(2, {2, 4, 3}), false);
       }},
      {"the matrix in shards", "fault: the triangular matrix is sharded",
       [] {
         return Solve(Piece(1, {2, 3, 3}), Same({2, 3, 4}));
       }},
      {"terms", "partial",
       [] {
         return Solve(Same({2, 3, 3}), Terms({2, 3, 4}));
       }},
      {"by terms", "fault: a triangular solve with a partial matrix",
       [] {
         return Solve(Terms({2, 3, 3}), Same({2, 3, 4}));
       }},
  });
}

// [2, 3] of which rank 0 has all of dim 1, and of which it has nothing; [3, 2] likewise.
at::Tensor All() { return OneAxis::As(at::rand({2, 3}), TypeOfLayout(Layout::Owned(1, 0), {2, 3}, 3, 2, 0)); }
at::Tensor None() { return OneAxis::As(at::rand({2, 0}), TypeOfLayout(Layout::Owned(1, 1), {2, 0}, 3, 2, 0)); }
at::Tensor AllRows() { return OneAxis::As(at::rand({3, 2}), TypeOfLayout(Layout::Owned(0, 0), {3, 2}, 3, 2, 0)); }
at::Tensor NoRows() { return OneAxis::As(at::rand({0, 2}), TypeOfLayout(Layout::Owned(0, 1), {0, 2}, 3, 2, 0)); }

TEST_CASE("shards that one rank owns") {
  CHECK(TypeOfLayout(Layout::Owned(0, 1), {0, 2}, -1, 2, 0).is(TypeKind::kVarying));
  CHECK(TypeOfLayout(Layout::Owned(0, 0), {3, 2}, -1, 2, 0).is_owned());
  CHECK(!TypeOfLayout(Layout::Shard(0), {3, 2}, 6, 2, 0).is_owned());
  Run({
      {"on the owner", "shard(1)", [] { return All() * All().sigmoid(); }},
      {"elsewhere", "shard(1)", [] { return None() * None().sigmoid(); }},
      {"a product over the dim, on the owner", "partial", [] { return All().mm(AllRows()); }},
      {"a product over the dim, elsewhere", "partial", [] { return None().mm(NoRows()); }},
      {"with a bias, on the owner", "fault: the bias is added to a partial tensor",
       [] { return at::addmm(Same({2}), All(), AllRows()); }},
      {"with a bias, elsewhere", "fault: the bias is added to a partial tensor",
       [] { return at::addmm(Same({2}), None(), NoRows()); }},
      {"a function of the product", "fault: a nonlinear operator", [] { return None().mm(NoRows()).sigmoid(); }},
      {"of two owners", "fault: shards of dim 1 that hold different elements",
       [] {
         return All() + OneAxis::As(at::rand({2, 3}), TypeOfLayout(Layout::Owned(1, 1), {2, 0}, 3, 2, 0));
       }},
      {"along the dim, on the owner", "varying", [] { return All().softmax(1); }},
      {"along the dim, elsewhere", "varying", [] { return None().softmax(1); }},
      {"a product of that, on the owner", "varying", [] { return All().softmax(1).mm(AllRows()); }},
      {"a product of that, elsewhere", "partial", [] { return None().softmax(1).mm(NoRows()); }},
      {"a function of this product, elsewhere", "fault: a nonlinear operator",
       [] { return None().softmax(1).mm(NoRows()).sigmoid(); }},
      {"beside a whole value, elsewhere", "fault: a partial tensor is added to a replicated tensor",
       [] {
         return None().softmax(1).mm(NoRows()) + Same({2, 2});
       }},
      {"beside terms, on the owner", "partial",
       [] {
         return All().softmax(1).mm(AllRows()) + Terms({2, 2});
       }},
      {"times terms, on the owner", "fault: two partial tensors are multiplied",
       [] {
         return All().softmax(1).mm(AllRows()) * Terms({2, 2});
       }},
      {"numbers of nothing", "unproven: aten::mean.dim: the ranks without elements", [] { return None().mean(1); }},
      {"a mean on the owner", "varying", [] { return All().mean(1); }},
  });
}

}  // namespace
}  // namespace moonshard::test
