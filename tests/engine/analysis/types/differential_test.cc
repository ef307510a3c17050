// The rules against numbers: each operation runs on the tensors that two ranks hold, for every combination of layouts of
// its operands, and once on the full tensors. Where the rules accept a combination, the ranks' results must be what
// their type says of the full result. A rule may refuse what is right; it may not accept what is wrong.
#include <catch2/catch.hpp>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "tests/engine/analysis/types/on_ranks.h"

namespace moonshard::test {
namespace {

constexpr int64_t kBoth = 2;  // ranks

// The combinations of layouts that the rules accept and the numbers refute, one a line. Counts those that are accepted.
std::string Refuted(const Operation& operation, int64_t& accepted) {
  std::vector<std::vector<Layout>> choices;
  for (const at::Tensor& input : operation.inputs)
    choices.push_back(LayoutsOfTensor(input, operation.packed, operation.checks_indices, kBoth));
  const Tensors full = operation.body(operation.inputs);
  std::string out;
  std::vector<size_t> at(choices.size(), 0);
  for (bool more = true; more;) {
    std::vector<Layout> layouts;
    std::string name = operation.name;
    for (size_t i = 0; i < at.size(); ++i) {
      layouts.push_back(choices[i][at[i]]);
      name += (i == 0 ? "(" : ", ") + layouts.back().ToText();
    }
    const std::vector<RankRun> runs = RunOnAll(operation, layouts, kBoth);
    for (size_t i = 0; !runs.empty() && i < full.size(); ++i) {
      ++accepted;
      if (!IsAsTyped(runs, i, full[i]))
        out += name + "): result " + std::to_string(i) + " is not " + runs.front().types[i].ToString() + "\n";
    }
    more = false;
    for (size_t i = 0; i < at.size() && !more; ++i) {
      more = ++at[i] < choices[i].size();
      if (!more) at[i] = 0;
    }
  }
  return out;
}

// `of_shards`: whether each operation must be accepted for more layouts than replicate.
void CheckOperations(const std::vector<Operation>& operations, bool of_shards = false) {
  int64_t accepted = 0;
  for (const Operation& operation : operations) {
    const int64_t before = accepted;
    CHECK(Refuted(operation, accepted) == "");
    INFO(operation.name << " is accepted for no layouts");
    CHECK(accepted > before + (of_shards ? static_cast<int64_t>(operation.body(operation.inputs).size()) : 0));
  }
}

at::Tensor Numbers(at::IntArrayRef sizes) {
  at::manual_seed(static_cast<uint64_t>(sizes.size()) * 7 + 1);
  return at::rand(sizes, at::kDouble) - 0.4;
}
at::Tensor Ids(at::IntArrayRef sizes, int64_t below) {
  at::manual_seed(5);
  return at::randint(below, sizes, at::kLong);
}
c10::List<std::optional<at::Tensor>> List(const std::vector<std::optional<at::Tensor>>& tensors) {
  return c10::List<std::optional<at::Tensor>>(tensors);
}

TEST_CASE("elementwise operators compute what their types say") {
  const at::Tensor a = Numbers({4, 6});
  const at::Tensor b = Numbers({4, 6}) + 1;
  CheckOperations({
      {"add", {a, b}, [](const Tensors& t) -> Tensors { return {t[0] + t[1]}; }},
      {"sub row", {a, Numbers({6})}, [](const Tensors& t) -> Tensors { return {t[0] - t[1]}; }},
      {"mul", {a, b}, [](const Tensors& t) -> Tensors { return {t[0] * t[1]}; }},
      {"div", {a, b}, [](const Tensors& t) -> Tensors { return {t[0] / t[1]}; }},
      {"div floor", {a, b}, [](const Tensors& t) -> Tensors { return {at::div(t[0], t[1], "floor")}; }},
      {"div by a number, truncated", {a}, [](const Tensors& t) -> Tensors { return {at::div(t[0], 0.1, "trunc")}; }},
      {"lerp", {a, b, Numbers({4, 6})}, [](const Tensors& t) -> Tensors { return {at::lerp(t[0], t[1], t[2])}; }},
      {"lerp number", {a, b}, [](const Tensors& t) -> Tensors { return {at::lerp(t[0], t[1], 0.3)}; }},
      {"where", {a.gt(0), a, b}, [](const Tensors& t) -> Tensors { return {at::where(t[0], t[1], t[2])}; }},
      {"where 0", {a.gt(0), a}, [](const Tensors& t) -> Tensors { return {at::where(t[0], t[1], 0)}; }},
      {"where 1", {a.gt(0), a}, [](const Tensors& t) -> Tensors { return {at::where(t[0], t[1], 1)}; }},
      {"where a scalar tensor",
       {a.gt(0), a},
       [](const Tensors& t) -> Tensors { return {at::where(t[0], t[1], at::full({}, 2.0, at::kDouble))}; }},
      {"masked_fill", {a, a.gt(0)}, [](const Tensors& t) -> Tensors { return {t[0].masked_fill(t[1], 0)}; }},
      {"masked_fill 1", {a, a.gt(0)}, [](const Tensors& t) -> Tensors { return {t[0].masked_fill(t[1], 1)}; }},
      {"addcmul", {a, b, Numbers({6})}, [](const Tensors& t) -> Tensors { return {at::addcmul(t[0], t[1], t[2])}; }},
      {"addcdiv", {a, b, Numbers({6})}, [](const Tensors& t) -> Tensors { return {at::addcdiv(t[0], t[1], t[2])}; }},
      {"to integers", {a}, [](const Tensors& t) -> Tensors { return {(t[0] * 5).to(at::kLong)}; }},
      {"to booleans", {a}, [](const Tensors& t) -> Tensors { return {t[0].to(at::kBool)}; }},
      {"copy into integers",
       {a},
       [](const Tensors& t) -> Tensors { return {at::zeros_like(t[0], at::kLong).copy_(t[0] * 9)}; }},
      {"fill with a tensor",
       {Numbers({})},
       [](const Tensors& t) -> Tensors { return {at::zeros({3}, at::kDouble).fill_(t[0])}; }},
      {"add a triangle",
       {Numbers({4, 4})},
       [](const Tensors& t) -> Tensors { return {t[0] + at::ones_like(t[0]).tril()}; }},
      {"add a triangle of its own sizes",
       {Numbers({4, 4})},
       [](const Tensors& t) -> Tensors {
         return {t[0] + at::full({t[0].size(0), 4}, -9.0, at::kDouble).triu(1)};
       }},
      {"add embeddings of zeros",
       {Numbers({4, 6}), Numbers({3, 6})},
       [](const Tensors& t) -> Tensors { return {t[0] + at::embedding(t[1], at::zeros({4}, at::kLong))}; }},
      {"add softmax of zeros",
       {a},
       [](const Tensors& t) -> Tensors { return {t[0] + at::softmax(at::zeros({6}, at::kDouble), 0)}; }},
      {"add logsumexp of zeros",
       {a},
       [](const Tensors& t) -> Tensors {
         return {t[0] + at::zeros({6, 2}, at::kDouble).logsumexp(1)};
       }},
      {"add norm of zeros",
       {a},
       [](const Tensors& t) -> Tensors {
         return {t[0] + at::layer_norm(at::zeros({4, 6}, at::kDouble), {6}, {}, at::ones({6}, at::kDouble))};
       }},
      {"add gathered",
       {a, Numbers({4, 6})},
       [](const Tensors& t) -> Tensors {
         return {t[0] + t[1].gather(1, at::zeros({4, 6}, at::kLong))};
       }},
      {"foreach add a number",
       {a, b},
       [](const Tensors& t) -> Tensors { return at::_foreach_add(at::TensorList(t), 3); }},
      {"foreach div",
       {a, b},
       [](const Tensors& t) -> Tensors {
         const at::TensorList all(t);
         return at::_foreach_div(all.slice(0, 1), all.slice(1, 1));
       }},
      {"foreach lerp",
       {a, b, Numbers({4, 6})},
       [](const Tensors& t) -> Tensors {
         const at::TensorList all(t);
         return at::_foreach_lerp(all.slice(0, 1), all.slice(1, 1), all.slice(2, 1));
       }},
  });
}

TEST_CASE("reductions and orders compute what their types say") {
  const at::Tensor x = Numbers({4, 6, 2});
  const at::Tensor uneven = Numbers({3, 5});
  std::vector<Operation> operations;
  for (const int64_t dim : {0, 1, -1}) {
    const auto add = [&](const char* name, const std::function<Tensors(const at::Tensor&)>& body) {
      for (const at::Tensor& one : {x, uneven})
        operations.push_back({name, {one}, [body](const Tensors& t) { return body(t[0]); }});
    };
    add("sum", [dim](const at::Tensor& t) -> Tensors { return {t.sum(dim), t.sum(dim, true)}; });
    add("mean", [dim](const at::Tensor& t) -> Tensors { return {t.mean(dim)}; });
    add("mean of all", [](const at::Tensor& t) -> Tensors { return {t.mean()}; });
    add("amax", [dim](const at::Tensor& t) -> Tensors { return {t.amax(dim)}; });
    add("argmax", [dim](const at::Tensor& t) -> Tensors { return {t.argmax(dim)}; });
    add("var", [dim](const at::Tensor& t) -> Tensors { return {t.var(at::IntArrayRef(dim))}; });
    add("logsumexp", [dim](const at::Tensor& t) -> Tensors { return {t.logsumexp(dim)}; });
    add("softmax", [dim](const at::Tensor& t) -> Tensors { return {at::softmax(t, dim), at::log_softmax(t, dim)}; });
    add("cumsum", [dim](const at::Tensor& t) -> Tensors { return {t.cumsum(dim)}; });
    add("cumprod", [dim](const at::Tensor& t) -> Tensors { return {t.cumprod(dim)}; });
    add("logcumsumexp", [dim](const at::Tensor& t) -> Tensors { return {t.logcumsumexp(dim)}; });
    add("sort", [dim](const at::Tensor& t) -> Tensors { return {std::get<0>(t.sort(dim)), std::get<1>(t.sort(dim))}; });
    add("stable sort",
        [dim](const at::Tensor& t) -> Tensors { return {std::get<0>(at::sort(t, std::optional<bool>(true), dim))}; });
    add("stable argsort", [dim](const at::Tensor& t) -> Tensors { return {at::argsort(t, /*stable=*/true, dim)}; });
    add("topk", [dim](const at::Tensor& t) -> Tensors {
      return {std::get<0>(t.topk(1, dim)), std::get<1>(t.topk(1, dim))};
    });
    add("max", [dim](const at::Tensor& t) -> Tensors { return {std::get<0>(t.max(dim)), std::get<1>(t.max(dim))}; });
    add("roll", [dim](const at::Tensor& t) -> Tensors { return {t.roll(1, dim)}; });
    add("flip", [dim](const at::Tensor& t) -> Tensors { return {t.flip(dim)}; });
    add("unfold", [dim](const at::Tensor& t) -> Tensors { return {t.unfold(dim, 2, 1)}; });
    add("repeat_interleave", [dim](const at::Tensor& t) -> Tensors { return {t.repeat_interleave(2, dim)}; });
    add("select", [dim](const at::Tensor& t) -> Tensors { return {t.select(dim, 0)}; });
    add("narrow", [dim](const at::Tensor& t) -> Tensors { return {t.narrow(dim, 0, 1)}; });
    add("every second", [dim](const at::Tensor& t) -> Tensors { return {t.slice(dim, 1, std::nullopt, 2)}; });
    add("chunk", [dim](const at::Tensor& t) -> Tensors { return t.chunk(2, dim); });
    add("unbind", [dim](const at::Tensor& t) -> Tensors { return {t.unbind(dim).front()}; });
  }
  operations.push_back({"tril", {Numbers({2, 4, 4})}, [](const Tensors& t) -> Tensors { return {t[0].tril()}; }});
  operations.push_back(
      {"maximum by max", {x, x + 1}, [](const Tensors& t) -> Tensors { return {at::max(t[0], t[1])}; }});
  int64_t accepted = 0;
  for (const Operation& operation : operations) CHECK(Refuted(operation, accepted) == "");
  CHECK(accepted > 200);
}

TEST_CASE("views compute what their types say") {
  const at::Tensor x = Numbers({4, 6, 8});
  CheckOperations({
      {"flatten front",
       {x},
       [](const Tensors& t) -> Tensors {
         return {t[0].reshape({-1, t[0].size(2)})};
       }},
      {"flatten behind",
       {x},
       [](const Tensors& t) -> Tensors {
         return {t[0].reshape({t[0].size(0), -1})};
       }},
      {"heads",
       {x},
       [](const Tensors& t) -> Tensors {
         return {t[0].view({t[0].size(0), t[0].size(1), -1, 2}).transpose(1, 2)};
       }},
      {"heads of one",
       {x},
       [](const Tensors& t) -> Tensors {
         return {t[0].view({t[0].size(0), t[0].size(1), -1, 4}).transpose(1, 2)};
       }},
      {"rows and back",
       {x},
       [](const Tensors& t) -> Tensors {
         return {t[0].reshape({-1, t[0].size(2)}).view({t[0].size(0), t[0].size(1), -1}).sum(0)};
       }},
      {"front in twos",
       {x},
       [](const Tensors& t) -> Tensors {
         return {t[0].view({-1, 2, t[0].size(1), t[0].size(2)}).sum(1)};
       }},
      {"front by twos",
       {x},
       [](const Tensors& t) -> Tensors {
         return {t[0].view({2, -1, t[0].size(1), t[0].size(2)}).sum(0)};
       }},
      {"all flat", {x}, [](const Tensors& t) -> Tensors { return {t[0].reshape({-1})}; }},
      {"across dims",
       {x},
       [](const Tensors& t) -> Tensors {
         return {t[0].reshape({-1, 4}).sum(1)};
       }},
      {"permuted and flat",
       {x},
       [](const Tensors& t) -> Tensors {
         return {t[0].permute({1, 0, 2}).reshape({t[0].size(1), -1})};
       }},
      {"transposed and flat",
       {x},
       [](const Tensors& t) -> Tensors {
         return {t[0].transpose(1, 2).reshape({-1, t[0].size(1)})};
       }},
      {"expanded",
       {Numbers({4, 1, 6})},
       [](const Tensors& t) -> Tensors {
         return {t[0].expand({-1, 3, -1}).reshape({-1, t[0].size(2)})};
       }},
      {"keys repeated",
       {Numbers({2, 4, 3})},
       [](const Tensors& t) -> Tensors {
         return {t[0].unsqueeze(2).expand({-1, -1, 2, -1}).reshape({t[0].size(0), -1, t[0].size(2)})};
       }},
      {"cat",
       {x, x + 1},
       [](const Tensors& t) -> Tensors {
         return {at::cat({t[0], t[1]}, 0)};
       }},
      {"cat behind",
       {x, x + 1},
       [](const Tensors& t) -> Tensors {
         return {at::cat({t[0], t[1]}, -1)};
       }},
      {"cat and split",
       {x, x + 1},
       [](const Tensors& t) -> Tensors {
         return at::cat({t[0], t[1]}, -1).chunk(2, -1);
       }},
      {"cat of rows, viewed",
       {x, x + 1},
       [](const Tensors& t) -> Tensors {
         const at::Tensor rows = at::cat({t[0].reshape({-1, t[0].size(2)}), t[1].reshape({-1, t[0].size(2)})});
         return {rows.view({2 * t[0].size(0), t[0].size(1), -1})};
       }},
      {"cat of means and sums",
       {x, x + 1},
       [](const Tensors& t) -> Tensors {
         return {at::cat({t[0].mean(0), t[1].sum(0)})};
       }},
      {"stack",
       {x, x + 1},
       [](const Tensors& t) -> Tensors {
         return {at::stack({t[0], t[1]}, 1)};
       }},
      {"rotate half",
       {x},
       [](const Tensors& t) -> Tensors {
         const Tensors halves = t[0].chunk(2, -1);
         return {at::cat({-halves[1], halves[0]}, -1)};
       }},
      {"pad",
       {x},
       [](const Tensors& t) -> Tensors {
         return {at::constant_pad_nd(t[0], {0, 0, 1, 0})};
       }},
      {"squeeze", {Numbers({4, 1, 6})}, [](const Tensors& t) -> Tensors { return {t[0].squeeze(1).unsqueeze(0)}; }},
      {"unflatten three",
       {Numbers({4, 12})},
       [](const Tensors& t) -> Tensors {
         return {t[0].view({t[0].size(0), 2, -1}).select(1, 1)};
       }},
  });
}

TEST_CASE("products compute what their types say") {
  const at::Tensor a = Numbers({4, 6});
  const at::Tensor b = Numbers({6, 8});
  CheckOperations({
      {"mm", {a, b}, [](const Tensors& t) -> Tensors { return {at::mm(t[0], t[1])}; }},
      {"addmm", {Numbers({8}), a, b}, [](const Tensors& t) -> Tensors { return {at::addmm(t[0], t[1], t[2])}; }},
      {"addmm beta 0",
       {Numbers({8}), a, b},
       [](const Tensors& t) -> Tensors { return {at::addmm(t[0], t[1], t[2], 0, 2)}; }},
      {"bmm",
       {Numbers({2, 4, 6}), Numbers({2, 6, 4})},
       [](const Tensors& t) -> Tensors { return {at::bmm(t[0], t[1])}; }},
      {"baddbmm",
       {Numbers({2, 4, 4}), Numbers({2, 4, 6}), Numbers({2, 6, 4})},
       [](const Tensors& t) -> Tensors { return {at::baddbmm(t[0], t[1], t[2], 0.5, 2)}; }},
      {"mv", {a, Numbers({6})}, [](const Tensors& t) -> Tensors { return {at::mv(t[0], t[1])}; }},
      {"dot", {Numbers({6}), Numbers({6}) + 1}, [](const Tensors& t) -> Tensors { return {at::dot(t[0], t[1])}; }},
      {"matmul", {Numbers({2, 4, 6}), b}, [](const Tensors& t) -> Tensors { return {at::matmul(t[0], t[1])}; }},
      {"matmul of heads",
       {Numbers({2, 4, 4, 6}), Numbers({2, 4, 6, 2})},
       [](const Tensors& t) -> Tensors { return {at::matmul(t[0], t[1])}; }},
      {"linear",
       {Numbers({2, 4, 6}), Numbers({8, 6}), Numbers({8})},
       [](const Tensors& t) -> Tensors { return {at::linear(t[0], t[1], t[2])}; }},
      {"einsum of heads",
       {Numbers({2, 4, 6}), Numbers({4, 6, 2})},
       [](const Tensors& t) -> Tensors {
         return {at::einsum("bhd,hdk->bhk", {t[0], t[1]})};
       }},
      {"einsum of experts",
       {Numbers({4, 6}), Numbers({2, 6, 8})},
       [](const Tensors& t) -> Tensors {
         return {at::einsum("td,edh->teh", {t[0], t[1]})};
       }},
      {"einsum to a sum",
       {Numbers({4, 2, 6}), Numbers({4, 2})},
       [](const Tensors& t) -> Tensors {
         return {at::einsum("teh,te->th", {t[0], t[1]})};
       }},
      {"outer",
       {Numbers({4}), Numbers({6})},
       [](const Tensors& t) -> Tensors {
         return {at::einsum("i,j->ij", {t[0], t[1]})};
       }},
      {"conv1d",
       {Numbers({2, 4, 5}), Numbers({6, 4, 3}), Numbers({6})},
       [](const Tensors& t) -> Tensors { return {at::conv1d(t[0], t[1], t[2], 1, 1)}; }},
      {"conv1d of channels",
       {Numbers({2, 4, 5}), Numbers({4, 1, 3})},
       [](const Tensors& t) -> Tensors { return {at::conv1d(t[0], t[1], {}, 1, 1, 1, t[0].size(1))}; }},
  });
}

// x [2, channels, 5], weight [out, in / groups, 3], gradient [2, out, 5]; on two ranks each has one group, and the
// convolution none.
TEST_CASE("convolutions with groups and transposed ones compute what their types say") {
  const at::Tensor x = Numbers({2, 4, 5});
  const auto check = [](bool fits) {
    if (!fits) throw std::runtime_error("sizes");
  };
  CheckOperations(
      {
          {"conv1d of two groups",
           {x, Numbers({6, 2, 3}), Numbers({6})},
           [](const Tensors& t) -> Tensors {
             return {at::conv1d(t[0], t[1], t[2], 1, 1, 1, t[0].size(1) / t[1].size(1))};
           },
           /*packed=*/false},
          {"gradients of conv1d of two groups",
           {Numbers({2, 6, 5}), x, Numbers({6, 2, 3})},
           [=](const Tensors& t) -> Tensors {
             check(t[0].size(0) == t[1].size(0) && t[0].size(1) == t[2].size(0) && t[0].size(2) == t[1].size(2) &&
                   t[2].size(2) == 3 && t[1].size(1) % t[2].size(1) == 0);
             const auto [of_x, of_weight, of_bias] =
                 at::convolution_backward(t[0], t[1], t[2], std::nullopt, {1}, {1}, {1}, false, {0},
                                          t[1].size(1) / t[2].size(1), {true, true, false});
             return {of_x, of_weight};
           },
           /*packed=*/false},
          {"transposed conv1d",
           {x, Numbers({4, 6, 3}), Numbers({6})},
           [](const Tensors& t) -> Tensors { return {at::conv_transpose1d(t[0], t[1], t[2])}; },
           /*packed=*/false},
          {"gradients of transposed conv1d",
           {Numbers({2, 6, 7}), x, Numbers({4, 6, 3})},
           [=](const Tensors& t) -> Tensors {
             check(t[0].size(0) == t[1].size(0) && t[0].size(1) == t[2].size(1) && t[1].size(1) == t[2].size(0) &&
                   t[0].size(2) == t[1].size(2) + 2 && t[2].size(2) == 3);
             const auto [of_x, of_weight, of_bias] = at::convolution_backward(t[0], t[1], t[2], std::nullopt, {1}, {0},
                                                                              {1}, true, {0}, 1, {true, true, false});
             return {of_x, of_weight};
           },
           /*packed=*/false},
      },
      true);
}

TEST_CASE("lookups compute what their types say") {
  const at::Tensor x = Numbers({4, 6});
  CheckOperations({
      {"embedding",
       {Numbers({6, 4}), Ids({2, 4}, 3)},
       [](const Tensors& t) -> Tensors { return {at::embedding(t[0], t[1])}; }},
      {"embedding with padding",
       {Numbers({6, 4}), Ids({2, 4}, 3)},
       [](const Tensors& t) -> Tensors { return {at::embedding(t[0], t[1], 1)}; }},
      {"gradient of an embedding",
       {Numbers({2, 4, 4}), Ids({2, 4}, 3)},
       [](const Tensors& t) -> Tensors { return {at::embedding_dense_backward(t[0], t[1], 6, -1, false)}; },
       /*packed=*/true,
       /*checks_indices=*/false},
      {"gradient of an embedding by frequency",
       {Numbers({2, 4, 4}), Ids({2, 4}, 3)},
       [](const Tensors& t) -> Tensors { return {at::embedding_dense_backward(t[0], t[1], 6, -1, true)}; },
       /*packed=*/true,
       /*checks_indices=*/false},
      {"index_select", {x, Ids({4}, 2)}, [](const Tensors& t) -> Tensors { return {t[0].index_select(0, t[1])}; }},
      {"index", {x, Ids({4}, 2)}, [](const Tensors& t) -> Tensors { return {at::index(t[0], List({t[1]}))}; }},
      {"index behind",
       {x, Ids({4}, 2)},
       [](const Tensors& t) -> Tensors {
         return {at::index(t[0], List({std::nullopt, t[1]}))};
       }},
      {"index by two",
       {x, Ids({4}, 2), Ids({4}, 3)},
       [](const Tensors& t) -> Tensors {
         return {at::index(t[0], List({t[1], t[2]}))};
       }},
      {"index by apart",
       {Numbers({4, 2, 6}), Ids({4}, 2), Ids({4}, 3)},
       [](const Tensors& t) -> Tensors {
         return {at::index(t[0], List({t[1], std::nullopt, t[2]}))};
       }},
      {"index by a mask",
       {x, Numbers({4}).gt(0)},
       [](const Tensors& t) -> Tensors { return {at::index(t[0], List({t[1]}))}; }},
      {"index by a wide mask",
       {x, x.gt(0)},
       [](const Tensors& t) -> Tensors { return {at::index(t[0], List({t[1]}))}; }},
      {"index_add",
       {x, Ids({4}, 2), Numbers({4, 6})},
       [](const Tensors& t) -> Tensors { return {t[0].index_add(0, t[1], t[2])}; }},
      {"index_add to zeros",
       {Ids({4}, 2), Numbers({4, 6})},
       [](const Tensors& t) -> Tensors {
         return {at::zeros({4, t[1].size(1)}, at::kDouble).index_add(0, t[0], t[1])};
       }},
      {"counts by index_add",
       {Ids({4}, 2)},
       [](const Tensors& t) -> Tensors {
         return {at::zeros({4}, at::kDouble).index_add(0, t[0], at::ones({t[0].size(0)}, at::kDouble))};
       }},
      {"index_put",
       {x, Ids({4}, 2), Numbers({4, 6})},
       [](const Tensors& t) -> Tensors { return {at::index_put(t[0], List({t[1]}), t[2], true)}; }},
      {"index_put behind",
       {x, Ids({4}, 2), Numbers({4, 4})},
       [](const Tensors& t) -> Tensors {
         return {at::index_put(t[0], List({std::nullopt, t[1]}), t[2], true)};
       }},
      {"index_put to zeros",
       {Ids({4}, 2), Numbers({4, 6})},
       [](const Tensors& t) -> Tensors {
         return {at::index_put(at::zeros({4, t[1].size(1)}, at::kDouble), List({t[0]}), t[1], true)};
       }},
      {"index_put of a number",
       {x, Ids({4}, 2)},
       [](const Tensors& t) -> Tensors {
         return {at::index_put(t[0], List({t[1]}), at::ones({}, at::kDouble), true)};
       }},
      {"gather", {x, Ids({4, 2}, 3)}, [](const Tensors& t) -> Tensors { return {t[0].gather(1, t[1])}; }},
      {"gather in front", {x, Ids({2, 6}, 2)}, [](const Tensors& t) -> Tensors { return {t[0].gather(0, t[1])}; }},
      {"scatter",
       {x, Ids({4, 2}, 3), Numbers({4, 2})},
       [](const Tensors& t) -> Tensors { return {t[0].scatter(1, t[1], t[2])}; }},
      {"scatter_add to zeros",
       {Ids({4, 2}, 3), Numbers({4, 2})},
       [](const Tensors& t) -> Tensors {
         return {at::zeros({4, 6}, at::kDouble).scatter_add(1, t[0], t[1])};
       }},
      {"one hot", {Ids({4}, 3)}, [](const Tensors& t) -> Tensors { return {at::one_hot(t[0], 3).sum(0)}; }},
      {"take_along_dim of argsort",
       {x},
       [](const Tensors& t) -> Tensors {
         return {at::take_along_dim(t[0], at::argsort(t[0], int64_t{-1}, false), -1)};
       }},
  });
}

TEST_CASE("writes and places that follow values compute what their types say") {
  const at::Tensor x = Numbers({4, 6});
  const at::Tensor some = at::tensor({1.0, -1.0, 1.0, -1.0}, at::kDouble);
  const std::vector<Operation> operations = {
      {"columns written into zeros",
       {x},
       [](const Tensors& t) -> Tensors {
         const at::Tensor y = t[0].new_zeros({t[0].size(0), 8});
         y.narrow(1, 0, t[0].size(1)).copy_(t[0]);
         return {y};
       }},
      {"a column set to a number",
       {x},
       [](const Tensors& t) -> Tensors {
         const at::Tensor y = t[0] * 1;
         y.select(1, 0).fill_(2);
         return {y};
       }},
      {"a row set to a number",
       {x},
       [](const Tensors& t) -> Tensors {
         const at::Tensor y = t[0] * 1;
         y.select(0, 0).fill_(2);
         return {y};
       }},
      {"a row added",
       {x, Numbers({6})},
       [](const Tensors& t) -> Tensors {
         const at::Tensor y = t[0] * 1;
         y.select(0, 1).add_(t[1]);
         return {y};
       }},
      {"a view written, and read through its base",
       {x, x + 1},
       [](const Tensors& t) -> Tensors {
         const at::Tensor y = t[0] * 1;
         y.view({y.size(0), -1, 2}).mul_(t[1].view({t[1].size(0), -1, 2}));
         return {y};
       }},
      {"copied over",
       {x, x + 1},
       [](const Tensors& t) -> Tensors {
         const at::Tensor y = t[0] * 1;
         return {y.copy_(t[1])};
       }},
      {"rows by nonzero",
       {x, some},
       [](const Tensors& t) -> Tensors { return {at::index(t[0], List({t[1].gt(0).nonzero().select(1, 0)}))}; },
       /*packed=*/false},
      {"rows by a mask, summed",
       {x, some},
       [](const Tensors& t) -> Tensors { return {at::index(t[0], List({t[1].gt(0)})).sum(0)}; }},
      {"rows taken and added back",
       {x, some},
       [](const Tensors& t) -> Tensors {
         const at::Tensor rows = t[1].gt(0).nonzero().select(1, 0);
         return {at::zeros_like(t[0]).index_add(0, rows, at::index(t[0], List({rows})) * 2)};
       },
       /*packed=*/false},
      {"counts of rows",
       {some},
       [](const Tensors& t) -> Tensors {
         const at::Tensor rows = t[0].gt(0).nonzero().select(1, 0);
         return {at::zeros_like(t[0]).index_add(0, rows, at::ones({rows.size(0)}, at::kDouble))};
       }},
      {"a mask set to a number",
       {x, some},
       [](const Tensors& t) -> Tensors {
         return {at::index_put(t[0], List({t[1].gt(0)}), at::full({}, 3.0, at::kDouble))};
       }},
      {"rows by a mask that is full",
       {x, some},
       [](const Tensors& t) -> Tensors {
         return {at::index_put(at::zeros_like(t[0]), List({t[1].gt(0)}), at::ones({}, at::kDouble), true)};
       }},
      {"the best experts, weighed",
       {x, Numbers({4, 6, 2})},
       [](const Tensors& t) -> Tensors {
         const auto [weights, experts] = at::softmax(t[0], -1).topk(2, -1);
         const at::Tensor all = at::zeros_like(t[0]).scatter(1, experts, weights);
         return {(t[1] * all.unsqueeze(-1)).sum(1)};
       }},
      {"tokens of each expert",
       {x},
       [](const Tensors& t) -> Tensors {
         const at::Tensor experts = t[0].argmax(-1);
         return {at::one_hot(experts, 6).sum(0),
                 at::zeros({6}, at::kLong).scatter_add(0, experts, at::ones_like(experts))};
       }},
      {"sorted by experts and back",
       {x},
       [](const Tensors& t) -> Tensors {
         const at::Tensor order = at::argsort(t[0].select(1, 0), /*stable=*/true, int64_t{0});
         const at::Tensor sorted = t[0].index_select(0, order) * 2;
         return {at::zeros_like(sorted).index_copy(0, order, sorted)};
       }},
      {"positions added",
       {x},
       [](const Tensors& t) -> Tensors { return {t[0] + at::arange(t[0].size(0)).unsqueeze(1)}; }},
      {"positions looked up",
       {x, Numbers({4, 6})},
       [](const Tensors& t) -> Tensors { return {t[0] + t[1].slice(0, 0, t[0].size(0))}; }},
      {"shifted by one",
       {x},
       [](const Tensors& t) -> Tensors {
         return {at::cat({at::zeros({1, t[0].size(1)}, at::kDouble), t[0].slice(0, 0, -1)})};
       }},
      {"a causal mask of scores",
       {Numbers({2, 4, 4})},
       [](const Tensors& t) -> Tensors {
         const at::Tensor mask = at::ones({t[0].size(1), t[0].size(2)}, at::kBool).triu(1);
         return {at::softmax(t[0].masked_fill(mask, -1e9), -1)};
       }},
  };
  int64_t accepted = 0;
  for (const Operation& operation : operations) CHECK(Refuted(operation, accepted) == "");
  CHECK(accepted > 50);
}

// Rows of tokens grouped by three experts, each group times a number of its own, and put back: `join` makes one tensor of
// the groups.
Operation Grouped(const std::string& name, const std::function<at::Tensor(const Tensors&)>& join) {
  const at::Tensor ids = at::tensor({0, 2, 1, 0, 2, 1, 0, 1}, at::kLong).view({4, 2});
  const auto body = [join](const Tensors& t) -> Tensors {
    const at::Tensor chosen = t[1].unsqueeze(0).eq(at::arange(3).view({3, 1, 1}));
    const at::Tensor rows = chosen.nonzero();
    NoteGroups(rows);
    const at::Tensor token = rows.select(1, 1);
    const at::Tensor place = rows.select(1, 2);
    const at::Tensor counts = chosen.sum({1, 2});
    const auto* const first = counts.const_data_ptr<int64_t>();
    Tensors groups = t[0].index_select(0, token).split_with_sizes(std::vector<int64_t>(first, first + 3));
    for (size_t i = 0; i < groups.size(); ++i) groups[i] = groups[i] * static_cast<double>(i + 2);
    const at::Tensor zeros = at::zeros({1, 1, 1}, at::kDouble).expand({t[0].size(0), 2, t[0].size(1)});
    return {at::index_put(zeros, List({token, place}), join(groups)).sum(1)};
  };
  return {name, {Numbers({4, 6}), ids}, body, /*packed=*/false};
}

TEST_CASE("rows that values have grouped are those of their tokens if the groups are joined in their order") {
  int64_t accepted = 0;
  CHECK(Refuted(Grouped("in order", [](const Tensors& groups) { return at::cat(groups); }), accepted) == "");
  // Replicated, terms of a sum, shards of features and of tokens.
  CHECK(accepted >= 4);
  CheckOperations({Grouped("the last first",
                           [](const Tensors& groups) {
                             return at::cat({groups[2], groups[0], groups[1]});
                           }),
                   Grouped("two of three",
                           [](const Tensors& groups) {
                             return at::cat({groups[0], groups[1], at::zeros_like(groups[2])});
                           }),
                   Grouped("the rows of another group", [](const Tensors& groups) {
                     return at::cat({groups[1], groups[0], groups[2]});
                   })});
}

template <class Tuple>
Tensors AllOf(const Tuple& tuple) {
  return std::apply([](const auto&... one) { return Tensors{one...}; }, tuple);
}

// The kernels of batch norms do not check that parameters and statistics have one element for each channel.
void CheckChannels(const Tensors& tensors, size_t x, size_t first) {
  for (size_t i = first; i < tensors.size(); ++i) {
    if (tensors[i].size(0) != tensors[x].size(1) || tensors[0].sizes() != tensors[x].sizes())
      throw std::runtime_error("sizes");
  }
}

// A group norm is right by its own number of channels in a group; whether that is the number of the full step is
// compared elsewhere (prove/step_sizes.h).
TEST_CASE("norms of channels compute what their types say") {
  const at::Tensor x = Numbers({4, 8, 3});
  const at::Tensor weight = Numbers({8}) + 1;
  const at::Tensor bias = Numbers({8}) * 2;
  const auto group_norm = [](const Tensors& t) {
    return at::native_group_norm(t[0], t[1], t[2], t[0].size(0), t[0].size(1), 3, t[0].size(1) / 2, 1e-5);
  };
  const auto batch_norm = [](const Tensors& t, bool training) {
    CheckChannels(t, 0, 1);
    return at::native_batch_norm(t[0], t[1], t[2], t[3].clone(), t[4].clone(), training, 0.1, 1e-5);
  };
  const at::Tensor mean = Numbers({8});
  const at::Tensor variance = Numbers({8}).abs() + 0.5;
  const Tensors normalized = AllOf(group_norm({x, weight, bias}));
  const Tensors of_batch = AllOf(batch_norm({x, weight, bias, mean, variance}, true));
  CheckOperations(
      {
          {"group norm", {x, weight, bias}, [=](const Tensors& t) { return AllOf(group_norm(t)); }},
          {"group norm without parameters",
           {x},
           [](const Tensors& t) -> Tensors { return {at::group_norm(t[0], t[0].size(1) / 4)}; }},
          {"gradients of a group norm",
           {x.flip(0), x, normalized[1], normalized[2], weight},
           [](const Tensors& t) {
             return AllOf(at::native_group_norm_backward(t[0], t[1], t[2], t[3], t[4], t[1].size(0), t[1].size(1), 3,
                                                         t[1].size(1) / 2, {true, true, true}));
           }},
          {"batch norm in training",
           {x, weight, bias, mean, variance},
           [=](const Tensors& t) { return AllOf(batch_norm(t, true)); },
           /*packed=*/false},
          {"batch norm in evaluation",
           {x, weight, bias, mean, variance},
           [=](const Tensors& t) -> Tensors { return {std::get<0>(batch_norm(t, false))}; },
           /*packed=*/false},
          {"gradients of a batch norm",
           {x.flip(0), x, weight, of_batch[1], of_batch[2]},
           [](const Tensors& t) {
             CheckChannels(t, 1, 2);
             return AllOf(
                 at::native_batch_norm_backward(t[0], t[1], t[2], {}, {}, t[3], t[4], true, 1e-5, {true, true, true}));
           },
           /*packed=*/false},
          {"gradients of a batch norm in evaluation",
           {x.flip(0), x, weight, mean, variance},
           [](const Tensors& t) {
             CheckChannels(t, 1, 2);
             return AllOf(
                 at::native_batch_norm_backward(t[0], t[1], t[2], t[3], t[4], {}, {}, false, 1e-5, {true, true, true}));
           },
           /*packed=*/false},
      },
      true);
}

// The kernels of gradients do not check that there are as many planes.
void CheckPlanes(const Tensors& tensors) {
  if (tensors[0].sizes().slice(0, 2) != tensors[1].sizes().slice(0, 2)) throw std::runtime_error("sizes");
}

TEST_CASE("operators on planes compute what their types say") {
  const at::Tensor x = Numbers({4, 8, 4, 6});
  const at::Tensor half = Numbers({4, 8, 2, 3});
  const auto places = std::get<1>(at::max_pool2d_with_indices(x, {2, 2}));
  CheckOperations(
      {
          {"avg_pool2d", {x}, [](const Tensors& t) -> Tensors { return {at::avg_pool2d(t[0], 2)}; }},
          {"avg_pool1d", {Numbers({4, 6, 8})}, [](const Tensors& t) -> Tensors { return {at::avg_pool1d(t[0], 2)}; }},
          {"max_pool2d",
           {x},
           [](const Tensors& t) {
             return AllOf(at::max_pool2d_with_indices(t[0], {2, 2}));
           }},
          {"adaptive average",
           {x},
           [](const Tensors& t) -> Tensors {
             return {at::adaptive_avg_pool2d(t[0], {2, 3}), at::adaptive_avg_pool2d(t[0], {1, 1})};
           }},
          {"adaptive maximum",
           {x},
           [](const Tensors& t) -> Tensors {
             return {std::get<0>(at::adaptive_max_pool2d(t[0], {2, 3}))};
           }},
          {"nearest",
           {half},
           [](const Tensors& t) -> Tensors {
             return {at::upsample_nearest2d(t[0], {4, 6})};
           }},
          {"linear",
           {Numbers({4, 6, 3})},
           [](const Tensors& t) -> Tensors { return {at::upsample_linear1d(t[0], {6}, false)}; }},
          {"bicubic",
           {half},
           [](const Tensors& t) -> Tensors {
             return {at::upsample_bicubic2d(t[0], {4, 6}, true)};
           }},
          {"reflection",
           {x},
           [](const Tensors& t) -> Tensors {
             return {at::reflection_pad2d(t[0], {1, 1, 1, 1})};
           }},
          {"replication",
           {x},
           [](const Tensors& t) -> Tensors {
             return {at::replication_pad2d(t[0], {1, 0, 0, 1})};
           }},
          {"gradient of avg_pool2d",
           {half, x},
           [](const Tensors& t) -> Tensors {
             CheckPlanes(t);

             return {at::avg_pool2d_backward(t[0], t[1], {2, 2}, {2, 2}, {0, 0}, false, true, std::nullopt)};
           }},
          {"gradient of max_pool2d",
           {half, x, places},
           [](const Tensors& t) -> Tensors {
             CheckPlanes(t);
             const bool fits = t[2].sizes() == t[0].sizes() && t[0].size(2) == 2 && t[0].size(3) == 3;
             if (!fits || t[1].size(2) != 4 || t[1].size(3) != 6) throw std::runtime_error("sizes");
             return {at::max_pool2d_with_indices_backward(t[0], t[1], {2, 2}, {2, 2}, {0, 0}, {1, 1}, false, t[2])};
           },
           /*packed=*/false,
           /*checks_indices=*/false},
          {"gradient of nearest",
           {x},
           [](const Tensors& t) -> Tensors {
             return {at::upsample_nearest2d_backward(t[0], {4, 6}, {t[0].size(0), t[0].size(1), 2, 3})};
           }},
          {"gradient of reflection",
           {Numbers({4, 8, 6}), Numbers({4, 8, 4})},
           [](const Tensors& t) -> Tensors {
             CheckPlanes(t);

             return {at::reflection_pad1d_backward(t[0], t[1], {1, 1})};
           }},
          {"pixel_shuffle", {x}, [](const Tensors& t) -> Tensors { return {at::pixel_shuffle(t[0], 2)}; }},
          {"pixel_unshuffle", {x}, [](const Tensors& t) -> Tensors { return {at::pixel_unshuffle(t[0], 2)}; }},
          {"channel_shuffle", {x}, [](const Tensors& t) -> Tensors { return {at::channel_shuffle(t[0], 2)}; }},
      },
      true);
}

TEST_CASE("bags, halves, windows and diagonals compute what their types say") {
  const at::Tensor x = Numbers({4, 6, 4});
  const at::Tensor ids = Ids({8}, 3);
  const at::Tensor begins = at::tensor({0, 2, 4, 7}, at::kLong);
  std::vector<Operation> operations = {
      {"kthvalue", {x}, [](const Tensors& t) { return AllOf(at::kthvalue(t[0], 2, 1)); }},
      {"kthvalue in front", {x}, [](const Tensors& t) { return AllOf(at::kthvalue(t[0], 1, 0, true)); }},
      {"cummax", {x}, [](const Tensors& t) { return AllOf(t[0].cummax(1)); }},
      {"cummin", {x}, [](const Tensors& t) { return AllOf(t[0].cummin(-1)); }},
      {"glu",
       {x},
       [](const Tensors& t) -> Tensors {
         return {at::glu(t[0], 0), at::glu(t[0], -1)};
       }},
      {"glu of one dim", {x}, [](const Tensors& t) -> Tensors { return {at::glu(t[0], 0)}; }},
      {"gradient of glu",
       {Numbers({4, 6, 2}), x},
       [](const Tensors& t) -> Tensors { return {at::glu_backward(t[0], t[1], -1)}; }},
      {"unfold", {x}, [](const Tensors& t) -> Tensors { return {t[0].unfold(1, 3, 1)}; }},
      {"gradient of unfold",
       {Numbers({4, 4, 4, 3})},
       [](const Tensors& t) -> Tensors {
         return {at::unfold_backward(t[0], {t[0].size(0), 6, t[0].size(2)}, 1, 3, 1)};
       }},
      {"diagonal",
       {x},
       [](const Tensors& t) -> Tensors {
         return {t[0].diagonal(0, 0, 2), t[0].diagonal(1, 2, 1)};
       }},
      {"diagonal of the last dims", {x}, [](const Tensors& t) -> Tensors { return {t[0].diagonal(0, 1, 2)}; }},
      {"gradient of diagonal",
       {Numbers({6, 4})},
       [](const Tensors& t) -> Tensors {
         return {at::diagonal_backward(t[0], {4, t[0].size(0), 4}, 0, 0, 2)};
       }},
      {"prelu", {x, Numbers({6})}, [](const Tensors& t) -> Tensors { return {at::prelu(t[0], t[1])}; }},
      {"leaky_relu", {x}, [](const Tensors& t) -> Tensors { return {at::leaky_relu(t[0], 0.2)}; }},
      {"hardswish", {x}, [](const Tensors& t) -> Tensors { return {at::hardswish(t[0] * 4)}; }},
      {"log_sigmoid", {x}, [](const Tensors& t) -> Tensors { return {at::log_sigmoid(t[0])}; }},
      {"bilinear",
       {Numbers({4, 6}), Numbers({4, 2}), Numbers({8, 6, 2})},
       [](const Tensors& t) -> Tensors { return {at::bilinear(t[0], t[1], t[2], {})}; }},
      {"cells of gates in one product",
       {Numbers({4, 8})},
       [](const Tensors& t) -> Tensors {
         const Tensors gates = (t[0] * 2).add_(1).unsafe_chunk(2, 1);
         return {gates[0].sigmoid_() * gates[1].tanh_()};
       }},
      {"shards beside zeros",
       {x},
       [](const Tensors& t) -> Tensors {
         return at::cat({t[0], at::zeros_like(t[0])}, 1).chunk(2, 1);
       }},
      {"a new dim, squeezed", {x}, [](const Tensors& t) -> Tensors { return {t[0].unsqueeze(1).squeeze(1)}; }},
      {"a vector of parts as a row",
       {Numbers({4})},
       [](const Tensors& t) -> Tensors {
         return {t[0].view({1, -1})};
       }},
  };
  operations.push_back({"gradient of the weights of embedding_bag",
                        {Numbers({4, 4}), Numbers({6, 4}), ids, begins},
                        [](const Tensors& t) -> Tensors {
                          if (t[0].size(0) != 4 || t[2].size(0) != 8 || t[3].size(0) != 4 ||
                              t[0].size(1) != t[1].size(1))
                            throw std::runtime_error("sizes");
                          const at::Tensor bag_of_id = at::tensor({0, 0, 1, 1, 2, 2, 2, 3}, at::kLong);
                          return {at::_embedding_bag_per_sample_weights_backward(t[0], t[1], t[2], t[3], bag_of_id, 0)};
                        },
                        /*packed=*/true,
                        /*checks_indices=*/false});
  for (const int64_t mode : {0, 1, 2}) {
    operations.push_back({"embedding_bag",
                          {Numbers({6, 4}), ids, begins},
                          [mode](const Tensors& t) -> Tensors {
                            return {std::get<0>(at::embedding_bag(t[0], t[1], t[2], false, mode))};
                          },
                          /*packed=*/true,
                          /*checks_indices=*/false});
  }
  CheckOperations(operations, true);
}

TEST_CASE("attention, norms and losses compute what their types say") {
  const at::Tensor q = Numbers({2, 4, 6, 8});
  const auto attend = [](const Tensors& t, bool causal, bool grouped, const std::optional<at::Tensor>& mask = {}) {
    return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], mask, 0.0, causal, std::nullopt, grouped)};
  };
  CheckOperations({
      {"attention", {q, q + 1, q * 2}, [&](const Tensors& t) { return attend(t, false, false); }},
      {"causal attention", {q, q + 1, q * 2}, [&](const Tensors& t) { return attend(t, true, false); }},
      {"attention of groups",
       {q, Numbers({2, 2, 6, 8}), Numbers({2, 2, 6, 8}) + 1},
       [&](const Tensors& t) { return attend(t, true, true); }},
      {"attention with a mask",
       {q, Numbers({2, 1, 6, 6})},
       [&](const Tensors& t) {
         return attend({t[0], t[0], t[0]}, false, false, t[1]);
       }},
      {"attention with a mask of heads",
       {q, Numbers({4, 6, 6})},
       [&](const Tensors& t) {
         return attend({t[0], t[0], t[0]}, false, false, t[1]);
       }},
      {"attention with a square mask",
       {q, Numbers({6, 6})},
       [&](const Tensors& t) {
         return attend({t[0], t[0], t[0]}, false, false, t[1]);
       }},
      {"layer_norm",
       {Numbers({4, 6}), Numbers({6}), Numbers({6})},
       [](const Tensors& t) -> Tensors { return {at::layer_norm(t[0], {t[0].size(1)}, t[1], t[2])}; }},
      {"rms norm by hand",
       {Numbers({4, 6}), Numbers({6})},
       [](const Tensors& t) -> Tensors { return {t[0] * at::rsqrt(t[0].pow(2).mean(-1, true) + 1e-6) * t[1]}; }},
  });
  const at::Tensor logits = Numbers({4, 6});
  const at::Tensor targets = at::tensor({1, -100, 2, 3}, at::kLong);
  for (const at::Reduction::Reduction reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    CheckOperations({
        {"cross entropy",
         {logits, targets},
         [=](const Tensors& t) -> Tensors { return {at::cross_entropy_loss(t[0], t[1], {}, reduction)}; }},
        {"cross entropy with weights",
         {logits, targets, Numbers({6}).abs() + 0.1},
         [=](const Tensors& t) -> Tensors { return {at::cross_entropy_loss(t[0], t[1], t[2], reduction)}; }},
        {"cross entropy of parts",
         {Numbers({2, 6, 4}), at::tensor({1, 2, 0, -100, 3, 3, 1, 0}, at::kLong).view({2, 4})},
         [=](const Tensors& t) -> Tensors { return {at::cross_entropy_loss(t[0], t[1], {}, reduction)}; }},
        {"mse",
         {logits, logits + 1},
         [=](const Tensors& t) -> Tensors { return {at::mse_loss(t[0], t[1], reduction)}; }},
        {"smooth l1",
         {logits, logits.flip(0)},
         [=](const Tensors& t) -> Tensors { return {at::smooth_l1_loss(t[0], t[1], reduction)}; }},
        {"binary cross entropy",
         {logits.sigmoid(), logits.gt(0).to(at::kDouble)},
         [=](const Tensors& t) -> Tensors { return {at::binary_cross_entropy(t[0], t[1], {}, reduction)}; }},
        {"binary cross entropy with weights",
         {logits.sigmoid(), logits.gt(0).to(at::kDouble), Numbers({4, 6}).abs()},
         [=](const Tensors& t) -> Tensors { return {at::binary_cross_entropy(t[0], t[1], t[2], reduction)}; }},
        {"huber",
         {logits, logits.flip(0)},
         [=](const Tensors& t) -> Tensors { return {at::huber_loss(t[0], t[1], reduction, 0.2)}; }},
    });
  }
}

}  // namespace
}  // namespace moonshard::test
