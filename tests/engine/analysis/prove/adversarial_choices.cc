// Elements that a mask has chosen come in other numbers from each rank, so that nothing which counts them, or takes
// them in rows, is what one rank computes.
#include <torch/csrc/autograd/autograd.h>

#include "tests/engine/analysis/prove/adversarial.h"

namespace moonshard::test::adversarial {
namespace {

using at::Tensor;
using at::indexing::Slice;

// A layer "up" of 8 features; those with a positive bias are chosen.
Build ChosenBy(const std::vector<double>& bias) {
  return [bias](BlockImpl& m) {
    m.AddLinear("up", 4, 8);
    const torch::NoGradGuard guard;
    m.linear.at("up")->bias.copy_(torch::tensor(bias, at::kDouble));
  };
}

Tensor MaskOf(BlockImpl& m) { return m.linear.at("up")->bias.detach() > 0; }
Tensor Chosen(BlockImpl& m, const Tensor& x) { return m.Call("up", x).index({Slice(), Slice(), MaskOf(m)}); }
Tensor ChosenIds(BlockImpl& m) { return at::nonzero(MaskOf(m)).squeeze(1); }

const Layout kFusedRows = Layout::Packed(0, {{4, 0}, {4, 0}});
const Layout kFusedColumns = Layout::Packed(-1, {{4, 0}, {4, 0}});

void AddChosen(Forwards& out) {
  const Build even = ChosenBy({1, -1, 2, -1, 3, -1, -1, 4});
  const auto add = [&](const char* name, const Body& body) {
    out.push_back({std::string("chosen: ") + name, even, Around({{"block.up", Columns()}}), body});
  };
  add("summed, right", [](BlockImpl& m, const Tensor& x) { return Chosen(m, x).exp().sum(-1); });
  add("all of them by a slice, right",
      [](BlockImpl& m, const Tensor& x) { return Chosen(m, x).slice(-1, 0).exp().sum(-1); });
  add("with a new dim, right", [](BlockImpl& m, const Tensor& x) {
    return Chosen(m, x).unsqueeze(2).exp().sum({-2, -1});
  });
  add("with their rows joined, right",
      [](BlockImpl& m, const Tensor& x) { return Chosen(m, x).flatten(0, 1).tanh().sum(-1); });
  add("with rows and elements joined, right", [](BlockImpl& m, const Tensor& x) {
    return Chosen(m, x).reshape({2, -1}).exp().sum(-1);
  });
  add("softmax in two rows", [](BlockImpl& m, const Tensor& x) {
    return Chosen(m, x).view({2, 3, 2, -1}).softmax(-1).pow(2).sum({-2, -1});
  });
  add("softmax in one row", [](BlockImpl& m, const Tensor& x) {
    return Chosen(m, x).view({2, 3, 1, -1}).softmax(-1).pow(2).sum({-2, -1});
  });
  add("the last three", [](BlockImpl& m, const Tensor& x) { return Chosen(m, x).slice(-1, -3).exp().sum(-1); });
  add("all but the first two", [](BlockImpl& m, const Tensor& x) { return Chosen(m, x).slice(-1, 2).exp().sum(-1); });
  add("the first three by a split",
      [](BlockImpl& m, const Tensor& x) { return Chosen(m, x).split(3, -1)[0].exp().sum(-1); });
  add("the last three of their indices", [](BlockImpl& m, const Tensor& x) {
    return m.Call("up", x).index_select(-1, ChosenIds(m).slice(0, -3)).exp().sum(-1);
  });
  add("a layer norm of one row", [](BlockImpl& m, const Tensor& x) {
    const Tensor z = Chosen(m, x).reshape({6, 1, -1});
    return at::layer_norm(z, {z.size(-1)}).exp().sum({1, 2});
  });
  add("the maximum in rows", [](BlockImpl& m, const Tensor& x) {
    return Chosen(m, x).unflatten(-1, {2, -1}).amax(-1).sum(-1);
  });
  add("attention over them", [](BlockImpl& m, const Tensor& x) {
    const Tensor z = Chosen(m, x).reshape({6, 1, -1});
    return at::bmm(z.transpose(1, 2), z).softmax(-1).pow(2).sum({1, 2});
  });
  out.push_back({"chosen: a group norm over one of one rank and three of the other",
                 ChosenBy({1, -1, -1, -1, 3, 2, -1, 4}), Around({{"block.up", Columns()}}),
                 [](BlockImpl& m, const Tensor& x) {
                   const Tensor z = Chosen(m, x).transpose(1, 2).contiguous().view({1, -1, 3});
                   return at::group_norm(z, z.size(1) / 2).exp().sum();
                 }});
  out.push_back({"chosen: memory as long, copied into", ChosenBy({1, 1, 2, -1, 3, -1, -1, -4}), Replicated(),
                 [](BlockImpl& m, const Tensor& x) {
                   Tensor e = at::empty({2, 3, Chosen(m, x).size(-1)}, at::kDouble);
                   e.copy_(m.b);
                   return x.sum(-1) + e.sum(-1);
                 }});
}

// Rank 0 has the features 0, 1, 4 and 5, rank 1 the others; chosen are 1, 4 and 2, 3.
void AddChosenOfFused(Forwards& out) {
  const Build build = ChosenBy({-1, 1, 1, 1, 1, -1, -1, -1});
  const Styles fused = Around({{"block.up", Columns(kFusedRows, kFusedColumns)}});
  const auto channels = [](BlockImpl& m, const Tensor& x) { return Chosen(m, x).transpose(1, 2).contiguous(); };
  const auto add = [&](const char* name, const Body& body) {
    out.push_back({std::string("chosen of a fused dim: ") + name, build, fused, body});
  };
  add("a group norm", [=](BlockImpl& m, const Tensor& x) {
    const Tensor z = channels(m, x);
    return at::group_norm(z, z.size(1) / 2).exp().sum({1, 2});
  });
  add("softmax of pairs", [](BlockImpl& m, const Tensor& x) {
    return Chosen(m, x).view({2, 3, -1, 2}).softmax(-1).pow(2).sum({-2, -1});
  });
  add("a pixel shuffle", [=](BlockImpl& m, const Tensor& x) {
    return at::pixel_shuffle(channels(m, x).view({2, -1, 3, 1}), 2).softmax(-1).pow(2).sum({1, 2, 3});
  });
  const Build with_weight = [build](BlockImpl& m) {
    build(m);
    m.AddParameter("w", torch::linspace(-1, 1, 16).cos().view({8, 2, 1}));
  };
  Styles with_filter = fused;
  with_filter["block"].params["w"] = kFusedRows;
  const auto convolved = [](const Tensor& z, const Tensor& w) {
    using Ints = at::IntArrayRef;
    return at::conv1d(z, w, Tensor(), Ints({1}), Ints({0}), Ints({1}), z.size(1) / 2).exp().sum({1, 2});
  };
  out.push_back(
      {"chosen of a fused dim: a grouped convolution", with_weight, with_filter, [=](BlockImpl& m, const Tensor& x) {
         const Tensor z = m.Call("up", x).transpose(1, 2).index({Slice(), MaskOf(m)});
         return convolved(z, m.parameter["w"].index({MaskOf(m)}));
       }});
  out.push_back({"chosen of a fused dim: a grouped convolution of one choice", with_weight, with_filter,
                 [=](BlockImpl& m, const Tensor& x) {
                   const Tensor ids = ChosenIds(m);
                   const Tensor z = m.Call("up", x).index_select(-1, ids).transpose(1, 2);
                   return convolved(z, m.parameter["w"].index_select(0, ids));
                 }});
}

// Values that all ranks have, as many as a mask leaves of them, in a number that follows a shard.
void AddCounts(Forwards& out) {
  const auto add = [&](const char* name, const Body& body) {
    out.push_back({std::string("values that a mask chose: ") + name, Layers({{"up", 8}}), Replicated(), body});
  };
  const auto n = [](BlockImpl& m, const Tensor& x) { return m.Call("up", x).size(-1); };
  const auto all = [](const Tensor& x) { return x.index({x.detach() < 100}); };
  add("summed, right", [=](BlockImpl&, const Tensor& x) { return x.sum(-1) + all(x).sum(); });
  add("the first four, right", [=](BlockImpl&, const Tensor& x) { return x.sum(-1) + all(x).slice(0, 0, 4).sum(); });
  add("in rows of six, right", [=](BlockImpl&, const Tensor& x) {
    return x * all(x.detach()).view({-1, 6}).softmax(-1).pow(2).sum();
  });
  add("the first, by the size of a shard",
      [=](BlockImpl& m, const Tensor& x) { return x.sum(-1) + all(x).slice(0, 0, n(m, x)).sum(); });
  add("the first, by a split", [=](BlockImpl& m, const Tensor& x) {
    const Tensor f = x.flatten();
    const Tensor r = f.index_select(0, at::nonzero(f.detach() < 100).squeeze(1));
    return x.sum(-1) + r.split(n(m, x), 0)[0].sum();
  });
  add("the first, without a gradient",
      [=](BlockImpl& m, const Tensor& x) { return x * all(x.detach()).slice(0, 0, n(m, x)).sum(); });
  add("the first, by a split without a gradient",
      [=](BlockImpl& m, const Tensor& x) { return x * all(x.detach()).split(n(m, x), 0)[0].sum(); });
  add("parts of given sizes", [=](BlockImpl& m, const Tensor& x) {
    const int64_t first = n(m, x);
    return x * all(x.detach()).split_with_sizes({first, 24 - first}, 0)[0].sum();
  });
  add("the last, by the size of a shard",
      [=](BlockImpl& m, const Tensor& x) { return x * all(x.detach()).narrow(0, n(m, x), 8).sum(); });
  add("softmax in rows, as many as a shard is long", [=](BlockImpl& m, const Tensor& x) {
    return x * all(x.detach()).view({n(m, x), -1}).softmax(-1).pow(2).sum();
  });
  add("shuffled in rows", [=](BlockImpl& m, const Tensor& x) {
    return x * all(x.detach()).view({n(m, x), -1}).t().reshape({2, 3, 4});
  });
  add("softmax in rows, with a gradient", [=](BlockImpl& m, const Tensor& x) {
    return x * all(x).view({n(m, x), -1}).softmax(-1).pow(2).sum();
  });
  out.push_back({"values that a mask chose: their sum, as often as an uneven shard is long", Layers({{"up", 7}}),
                 Replicated(),
                 [=](BlockImpl& m, const Tensor& x) { return x * all(x.detach()).sum().expand({n(m, x)}).sum(); }});
}

}  // namespace

Forwards ChoiceForwards() {
  Forwards out;
  AddChosen(out);
  AddChosenOfFused(out);
  AddCounts(out);
  return out;
}

}  // namespace moonshard::test::adversarial
