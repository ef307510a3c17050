// What shape functions answer, against the CPU's kernels: sizes, strides, dtypes and the memory that the operator takes
// at its busiest moment, workspace included.
#include <catch2/catch.hpp>

#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/analysis/footprint/ledger.h"
#include "engine/analysis/meta/meta_scope.h"
#include "engine/core/base/result.h"
#include "engine/runtime/intercept/routed_rows.h"
#include "tests/support/counting_allocator.h"

namespace moonshard::test {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Case {
  std::string name;
  std::function<Tensors()> arguments;  // on the CPU
  std::function<Tensors(const Tensors&)> function;
  bool workspace = true;  // that of the CPU's kernel does not depend on the processor
};

class PlainLedger final : public MemoryLedger {
 protected:
  StepPlace Where() override { return {}; }
};

// Strides as they are in memory; those of dims of size 1 say nothing.
std::vector<int64_t> StridesOf(const at::Tensor& tensor) {
  std::vector<int64_t> out = tensor.strides().vec();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) == 1) out[static_cast<size_t>(dim)] = 0;
  }
  return out;
}

// [B, n, T, D]; `tokens_first`: with the memory of [B, T, n, D].
at::Tensor Heads(int64_t length, bool tokens_first, at::ScalarType type = at::kFloat) {
  return tokens_first ? at::rand({2, length, 3, 16}, at::kFloat).to(type).transpose(1, 2)
                      : at::rand({2, 3, length, 16}, at::kFloat).to(type);
}

Tensors Attend(const Tensors& a) {
  const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(a[0], a[1], a[2], 0.0, true);
  return {out, sums};
}

Tensors AttendBackward(const Tensors& a) {
  const auto [q, k, v] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(a[3], a[0], a[1], a[2], a[3], a[4], 0.0, true);
  return {q, k, v};
}

// Of `lookup`, whose result the gradient `given` is of.
Tensors GradientOfLookup(const Tensors& a, const std::function<at::Tensor(const at::Tensor&)>& lookup) {
  const at::Tensor table = a[0].detach().requires_grad_();
  return torch::autograd::grad({lookup(table)}, {table}, {a[2]});
}

std::vector<Case> Cases() {
  std::vector<Case> out;
  const auto ids = [] { return at::arange(24).remainder(7).view({4, 6}); };
  out.push_back({"embedding",
                 [=] {
                   return Tensors{at::rand({7, 5}), ids()};
                 },
                 [](const Tensors& a) { return Tensors{at::embedding(a[0], a[1])}; }});
  out.push_back({"embedding backward",
                 [=] {
                   return Tensors{at::rand({4, 6, 5}), ids()};
                 },
                 [](const Tensors& a) { return Tensors{at::embedding_dense_backward(a[0], a[1], 7, -1, false)}; }});
  out.push_back({"index_select",
                 [] {
                   return Tensors{at::rand({6, 5}), at::arange(3)};
                 },
                 [](const Tensors& a) { return Tensors{at::index_select(a[0], 0, a[1])}; }});
  const auto lookups = [] { return Tensors{at::rand({60, 50}), at::arange(30), at::rand({30, 50})}; };
  out.push_back({"the backward of index_select", lookups, [](const Tensors& a) {
                   return GradientOfLookup(a, [&](const at::Tensor& x) { return x.index_select(0, a[1]); });
                 }});
  out.push_back({"the backward of index", lookups, [](const Tensors& a) {
                   return GradientOfLookup(a, [&](const at::Tensor& x) { return x.index({a[1]}); });
                 }});
  out.push_back(
      {"the backward of gather",
       [] {
         return Tensors{at::rand({60, 50}), at::arange(60).remainder(7).view({60, 1}), at::rand({60, 1})};
       },
       [](const Tensors& a) { return GradientOfLookup(a, [&](const at::Tensor& x) { return x.gather(1, a[1]); }); }});
  out.push_back({"index_add", lookups, [](const Tensors& a) { return Tensors{a[0].index_add(0, a[1], a[2])}; }});
  out.push_back({"index_put", lookups, [](const Tensors& a) { return Tensors{a[0].index_put({a[1]}, a[2])}; }});
  out.push_back({"scatter_add",
                 [] {
                   return Tensors{at::rand({60, 50}), at::arange(60).remainder(7).view({60, 1}), at::rand({60, 1})};
                 },
                 [](const Tensors& a) { return Tensors{a[0].scatter_add(1, a[1], a[2])}; }});
  out.push_back({"masked_fill",
                 [] {
                   return Tensors{at::rand({6, 5}), at::ones({6, 1}, at::kBool)};
                 },
                 [](const Tensors& a) { return Tensors{a[0].masked_fill(a[1], 0)}; }});
  out.push_back({"masked_fill of a smaller tensor",
                 [] {
                   return Tensors{at::rand({5}), at::ones({6, 5}, at::kBool)};
                 },
                 [](const Tensors& a) { return Tensors{a[0].masked_fill(a[1], 0)}; }});
  out.push_back({"floor_divide",
                 [] {
                   return Tensors{at::rand({6, 1}), at::rand({5}) + 1};
                 },
                 [](const Tensors& a) { return Tensors{at::floor_divide(a[0], a[1])}; }});
  out.push_back({"flip",
                 [] {
                   return Tensors{at::rand({6, 5})};
                 },
                 [](const Tensors& a) { return Tensors{at::flip(a[0], {1})}; }});
  out.push_back({"histc", [] { return Tensors{at::rand({30})}; },
                 [](const Tensors& a) { return Tensors{at::histc(a[0], 8, 0, 1)}; }, false});
  out.push_back({"polar",
                 [] {
                   return Tensors{at::rand({6, 5}), at::rand({6, 5})};
                 },
                 [](const Tensors& a) { return Tensors{at::polar(a[0], a[1])}; }});
  out.push_back({"abs",
                 [] {
                   return Tensors{at::rand({6, 5})};
                 },
                 [](const Tensors& a) { return Tensors{at::abs(a[0])}; }});
  out.push_back({"abs of complex numbers",
                 [] {
                   return Tensors{at::polar(at::rand({6, 5}), at::rand({6, 5}))};
                 },
                 [](const Tensors& a) { return Tensors{at::abs(a[0])}; }, false});
  out.push_back(
      {"a triangular matrix solved",
       [] {
         return Tensors{at::eye(4).expand({2, 3, 4, 4}), at::rand({3, 4, 5})};
       },
       [](const Tensors& a) { return Tensors{at::linalg_solve_triangular(a[0], a[1], /*upper=*/true).contiguous()}; },
       false});
  out.push_back({"masked_scatter backward",
                 [] {
                   return Tensors{at::rand({6, 5}), at::ones({6, 5}, at::kBool)};
                 },
                 [](const Tensors& a) {
                   return Tensors{at::masked_scatter_backward(a[0], a[1], {6, 5})};
                 },
                 false});
  out.push_back({"convolution",
                 [] {
                   return Tensors{at::rand({2, 6, 9}), at::rand({4, 3, 3}), at::rand({4})};
                 },
                 [](const Tensors& a) { return Tensors{at::conv1d(a[0], a[1], a[2], 2, 1, 1, 2)}; }, false});
  out.push_back({"logical_and",
                 [] {
                   return Tensors{at::ones({6, 1}, at::kBool), at::ones({5}, at::kBool)};
                 },
                 [](const Tensors& a) { return Tensors{a[0].logical_and(a[1])}; }});
  out.push_back({"logical_or_",
                 [] {
                   return Tensors{at::ones({6}, at::kBool), at::ones({6}, at::kBool)};
                 },
                 [](const Tensors& a) { return Tensors{a[0].clone().logical_or_(a[1])}; }});
  out.push_back({"relu",
                 [] {
                   return Tensors{at::rand({6, 5}).t()};
                 },
                 [](const Tensors& a) { return Tensors{at::relu(a[0])}; }});
  out.push_back({"the maximum of all",
                 [] {
                   return Tensors{at::rand({6, 5})};
                 },
                 [](const Tensors& a) { return Tensors{a[0].max()}; }});
  out.push_back({"arange", [] { return Tensors{at::rand({6})}; },
                 [](const Tensors& a) { return Tensors{at::arange(100, a[0].options())}; }});
  out.push_back({"layer norm",
                 [] {
                   return Tensors{at::rand({4, 6, 5}), at::ones({5}), at::zeros({5})};
                 },
                 [](const Tensors& a) {
                   const auto [y, mean, rstd] = at::native_layer_norm(a[0], {5}, a[1], a[2], 1e-5);
                   return Tensors{y, mean, rstd};
                 }});
  out.push_back(
      {"layer norm backward",
       [] {
         return Tensors{at::rand({4, 6, 5}), at::ones({5}), at::zeros({5}), at::rand({4, 6, 1}), at::rand({4, 6, 1})};
       },
       [](const Tensors& a) {
         const auto [x, w, b] =
             at::native_layer_norm_backward(a[0], a[0], {5}, a[3], a[4], a[1], a[2], {true, true, true});
         return Tensors{x, w, b};
       }});
  for (const int64_t length : {20, 100, 300, 900}) {
    for (const bool tokens_first : {false, true}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
        const std::string name =
            " of " + std::to_string(length) + (tokens_first ? ", tokens first, " : ", ") + c10::toString(type);
        const auto three = [=] {
          return Tensors{Heads(length, tokens_first, type), Heads(length, false, type), Heads(length, true, type)};
        };
        out.push_back({"attention" + name, three, &Attend, type != at::kBFloat16});
        out.push_back({"attention's backward" + name,
                       [=] {
                         Tensors all = three();
                         for (at::Tensor& tensor : Attend(all)) all.push_back(std::move(tensor));
                         return all;
                       },
                       &AttendBackward, type != at::kBFloat16});
      }
    }
  }
  return out;
}

struct Answer {
  Tensors tensors;
  int64_t peak = 0;
};

Answer OnCpu(const Case& one) {
  static CountingAllocator allocator;
  const Tensors arguments = one.arguments();
  const int64_t before = allocator.live();
  allocator.ResetPeak();
  Answer answer{one.function(arguments)};
  answer.peak = allocator.peak() - before;
  return answer;
}

Answer OnMeta(const Case& one) {
  Tensors arguments;
  for (const at::Tensor& tensor : one.arguments()) {
    arguments.push_back(at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta)));
  }
  const MetaScope meta;
  const auto ledger = std::make_shared<PlainLedger>();
  const LedgerScope scope(ledger);
  Answer answer{one.function(arguments)};
  for (const at::Tensor& tensor : answer.tensors) ledger->Settle(tensor);
  answer.peak = ledger->peak();
  return answer;
}

TEST_CASE("shape functions answer what the CPU's kernels do, and take as much") {
  at::set_num_threads(1);
  for (const Case& one : Cases()) {
    const Answer cpu = OnCpu(one);
    const Answer meta = OnMeta(one);
    INFO(one.name);
    if (one.workspace) CHECK(meta.peak == cpu.peak);
    REQUIRE(meta.tensors.size() == cpu.tensors.size());
    for (size_t i = 0; i < cpu.tensors.size(); ++i) {
      CHECK(meta.tensors[i].sizes() == cpu.tensors[i].sizes());
      CHECK(StridesOf(meta.tensors[i]) == StridesOf(cpu.tensors[i]));
      CHECK(meta.tensors[i].scalar_type() == cpu.tensors[i].scalar_type());
    }
  }
}

TEST_CASE("what depends on values is assumed, and said") {
  MetaScope meta({.routed_share = 0.25});
  const at::Tensor chosen = at::empty({10, 4}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  CHECK(chosen.eq(1).nonzero().sizes() == at::IntArrayRef({10, 2}));
  CHECK(chosen.eq(1).all().item<bool>());
  CHECK(chosen.max().item<int64_t>() == 1);
  CHECK(chosen.to(at::kCPU, at::kFloat).is_meta());
  const std::set<std::string> assumed = {"aten::_local_scalar_dense", "aten::nonzero"};
  CHECK(meta.assumptions() == assumed);
}

TEST_CASE("an operator without a shape is an error that names it") {
  const MetaScope meta;
  const at::Tensor x = at::empty({4}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  try {
    at::bincount(x);
    FAIL("no error");
  } catch (const PlanError& error) {
    REQUIRE(error.diagnostics().size() == 1);
    CHECK(error.diagnostics().front().finding == Finding::kNotSupported);
    CHECK(error.diagnostics().front().declared.starts_with("aten::bincount"));
  }
}

TEST_CASE("outside of a scope the meta device is LibTorch's own, also after one") {
  const at::Tensor q = at::empty({1, 2, 8, 4}, at::TensorOptions(at::kMeta));
  {
    const MetaScope meta;
    CHECK(at::scaled_dot_product_attention(q, q, q).sizes() == q.sizes());
  }
  CHECK_THROWS_AS(at::scaled_dot_product_attention(q, q, q), c10::Error);
  CHECK_THROWS_AS(at::nonzero(q), c10::Error);
}

TEST_CASE("ids of an exchange of tokens are of each expert of the rank alike, and of no other") {
  const MetaScope meta({.routed_share = 0.25});
  const at::TensorOptions long_on_meta = at::TensorOptions(at::kMeta).dtype(at::kLong);
  const at::Tensor ids = at::empty({12, 1}, long_on_meta);
  NoteExpertIds(ids, /*first=*/4, /*count=*/2);
  for (const int64_t expert : {3, 4, 5, 6}) {
    const int64_t rows = expert == 4 || expert == 5 ? 6 : 0;
    CHECK(ids.eq(expert).nonzero().size(0) == rows);
    CHECK((ids.flatten() == expert).nonzero().size(0) == rows);
    CHECK(at::empty({12, 8}, long_on_meta).index({ids.flatten().eq(expert)}).size(0) == rows);
  }
  CHECK(at::empty({12, 1}, long_on_meta).eq(4).nonzero().size(0) == 3);
  const at::Tensor sum = at::empty({12, 8}, at::kMeta);
  CHECK(sum.index_add(0, at::empty({0}, long_on_meta), at::empty({0, 8}, at::kMeta)).sizes() == sum.sizes());
}

}  // namespace
}  // namespace moonshard::test
