// A rank that has all of a dim computes with it as one rank does, so that only the ranks without elements show what is
// wrong.
#include "tests/engine/analysis/prove/adversarial.h"

namespace moonshard::test::adversarial {
namespace {

using at::Tensor;

// A plain shard of one feature lies on rank 0.
void AddOneFeature(Forwards& out) {
  const Build one = Layers({{"one", 1}});
  const Styles terms = Around({{"block.one", Columns()}});
  const auto add = [&](const char* name,
                       const std::function<Tensor(BlockImpl & m, const Tensor& h, const Tensor& x)>& f) {
    out.push_back({std::string("one feature: ") + name, one, terms,
                   [f](BlockImpl& m, const Tensor& x) { return f(m, m.Call("one", x), x); }});
  };
  add("the sum of its exponential, right", [](BlockImpl&, const Tensor& h, const Tensor&) { return h.exp().sum(-1); });
  add("the cosine of its sum", [](BlockImpl&, const Tensor& h, const Tensor&) { return h.sum(-1).cos(); });
  add("its mean", [](BlockImpl&, const Tensor& h, const Tensor&) { return h.mean(-1); });
  add("its product", [](BlockImpl&, const Tensor& h, const Tensor&) { return h.prod(-1); });
  add("its sum and a residual", [](BlockImpl&, const Tensor& h, const Tensor& x) { return h.sum(-1) + x.sum(-1); });
  add("its sum and a bias", [](BlockImpl& m, const Tensor& h, const Tensor&) { return h.sum(-1) + m.b; });
  add("softplus of it, squeezed",
      [](BlockImpl&, const Tensor& h, const Tensor&) { return at::softplus(h.squeeze(-1)).sum(-1); });
  add("a gate of its sum", [](BlockImpl& m, const Tensor& h, const Tensor&) { return h.sum(-1).sigmoid() * m.b; });
  add("softmax of its sums",
      [](BlockImpl&, const Tensor& h, const Tensor& x) { return h.sum(-1).softmax(-1) * x.detach().sum(-1); });
  add("its sum times the input, exponential",
      [](BlockImpl&, const Tensor& h, const Tensor& x) { return (h.sum(-1, true) * x).exp(); });
  add("a layer norm of its sums",
      [](BlockImpl&, const Tensor& h, const Tensor&) { return at::layer_norm(h.sum(-1), {3}).exp(); });
  const auto as_long = [](BlockImpl& m, const Tensor& x) {
    return x.sum(-1) + Expanded(m.b, m.Call("one", x).size(-1)).sum(-1);
  };
  out.push_back({"one feature: a parameter as long as it", one, Replicated(std::nullopt, "one"), as_long});
  out.push_back({"one feature: a host's constant as long as it", one, Replicated(std::nullopt, "one"),
                 [](BlockImpl& m, const Tensor& x) {
                   const auto n = static_cast<size_t>(m.Call("one", x).size(-1));
                   return x.sum(-1) + torch::tensor(std::vector<double>(n, 0.5), at::kDouble).sum();
                 }});
  Style gathered = Columns();
  gathered.outputs = {Redistribution{Layout::Shard(-1), kReplicated}};
  out.push_back({"one feature: gathered, right", one, Around({{"block.one", gathered}}, kShared, kShared, std::nullopt),
                 [](BlockImpl& m, const Tensor& x) { return m.Call("one", x).sum(-1).cos(); }});
  out.push_back({"one feature: a gate beside terms of the others",
                 Layers({{"one", 1}, {"two", 8}, {"down", 4, 8, false}}),
                 Around({{"block.one", Columns()}, {"block.two", Columns()}, {"block.down", Rows()}}),
                 [](BlockImpl& m, const Tensor& x) {
                   return m.Call("down", m.Call("two", x)).sum(-1) + m.Call("one", x).sum(-1).relu().add(0.2);
                 }});
  out.push_back({"one output channel: the cosine of the sum of channels",
                 [](BlockImpl& m) { m.AddConv("conv", torch::nn::Conv1dOptions(3, 1, 1)); },
                 Around({{"block.conv", OutChannels(kShared)}}),
                 [](BlockImpl& m, const Tensor& x) { return m.conv.at("conv")(x).sum(1).cos(); }});
}

// Constants and parameters as long as a dim that rank 0 owns.
void AddOwnedSizes(Forwards& out) {
  const Build up = Layers({{"up", 8}});
  const Styles plan = Around({{"block.up", OwnedColumns(0, kReplicated)}}, kReplicated, kReplicated, std::nullopt);
  const Styles terms = Around({{"block.up", OwnedColumns(0, kReplicated)}}, kReplicated, kReplicated);
  const auto add = [&](const char* name, const Styles& styles, const Body& body) {
    out.push_back({std::string("the size of an owned dim: ") + name, up, styles, body});
  };
  add("a parameter as long", plan,
      [](BlockImpl& m, const Tensor& x) { return x.sum(-1) + Expanded(m.b, m.Call("up", x).size(-1)).sum(-1); });
  add("memory as long, copied into", plan, [](BlockImpl& m, const Tensor& x) {
    Tensor e = at::empty({2, 3, m.Call("up", x).size(-1)}, at::kDouble);
    e.copy_(m.b);
    return x.sum(-1) + e.sum(-1);
  });
  add("memory as long, filled by the host", plan, [](BlockImpl& m, const Tensor& x) {
    const auto n = static_cast<size_t>(m.Call("up", x).size(-1));
    return x.sum(-1) + torch::tensor(std::vector<double>(n, 0.5), at::kDouble).sum();
  });
  add("a parameter expanded as it, summed", plan,
      [](BlockImpl& m, const Tensor& x) { return x * m.b.expand_as(m.Call("up", x)).sum(-1, true); });
  add("a parameter expanded as it, softmax", plan,
      [](BlockImpl& m, const Tensor& x) { return x * m.b.expand_as(m.Call("up", x)).softmax(-1).sum(-1, true); });
  add("new memory as long", plan, [](BlockImpl& m, const Tensor& x) {
    const Tensor h = m.Call("up", x).detach();
    return x * h.new_empty(h.sizes()).copy_(m.b.detach()).sum(-1, true);
  });
  add("a replicated parameter and zeros like it", terms,
      [](BlockImpl& m, const Tensor& x) { return (m.b + at::zeros_like(m.Call("up", x))).sum(-1); });
  add("a replicated parameter expanded as it", terms,
      [](BlockImpl& m, const Tensor& x) { return m.b.expand_as(m.Call("up", x)).exp().sum(-1); });
}

// Terms of other ranks meet an empty shard, and are lost.
void AddTermsBesideOwned(Forwards& out) {
  const Build build = Layers({{"up", 8}, {"gate", 4}, {"wide", 8}, {"down", 6, 8, false}});
  const Styles styles = Around({{"block.up", OwnedColumns(0)},
                                {"block.gate", OwnedColumns(0)},
                                {"block.wide", Columns()},
                                {"block.down", Rows()}});
  const auto joined = [](BlockImpl& m, const Tensor& x) {
    return at::cat({m.Call("up", x), m.Call("gate", x)}, -1).view({2, 3, -1, 6});
  };
  const auto down = [](BlockImpl& m, const Tensor& x) { return m.Call("down", m.Call("wide", x)); };
  const auto add = [&](const char* name, const Body& body) {
    out.push_back({std::string("terms beside an owned dim: ") + name, build, styles, body});
  };
  add("added to a view of it", [=](BlockImpl& m, const Tensor& x) {
    return (joined(m, x).exp() + down(m, x).view({2, 3, 1, 6})).sum({-2, -1});
  });
  add("subtracted from a view of it", [=](BlockImpl& m, const Tensor& x) {
    return at::sub(joined(m, x).tanh(), down(m, x).view({2, 3, 1, 6})).sum({0, 2, 3});
  });
  add("added to pairs of it", [=](BlockImpl& m, const Tensor& x) {
    const Tensor z = m.Call("up", x).view({2, 3, -1, 2}).exp();
    return (z + down(m, x).view({2, 3, 3, 2}).sum(-2, true)).sum({-2, -1});
  });
  add("added to a softmax of it",
      [=](BlockImpl& m, const Tensor& x) { return (m.Call("up", x).softmax(-1) + down(m, x).sum(-1, true)).sum(-1); });
  add("chosen by a condition", [=](BlockImpl& m, const Tensor& x) {
    return at::where(x.narrow(-1, 0, 1).unsqueeze(-1) > 0, joined(m, x).exp(), down(m, x).view({2, 3, 1, 6}))
        .sum({-2, -1});
  });
  out.push_back({"terms beside an owned dim: those of another owner",
                 Layers({{"up", 8}, {"gate", 4}, {"other", 8}, {"down", 6, 8, false}}),
                 Around({{"block.up", OwnedColumns(0)},
                         {"block.gate", OwnedColumns(0)},
                         {"block.other", OwnedColumns(1)},
                         {"block.down", OwnedRows(1)}}),
                 [=](BlockImpl& m, const Tensor& x) {
                   const Tensor terms = m.Call("down", m.Call("other", x).tanh());
                   return (joined(m, x).tanh().exp() + terms.view({2, 3, 1, 6})).sum({-2, -1});
                 }});
}

void AddOwners(Forwards& out) {
  const Build build = Layers({{"up", 8}, {"other", 8}, {"down", 4, 8, false}, {"odown", 4, 8, false}});
  const Styles owners = Around({{"block.up", OwnedColumns(0)},
                                {"block.other", OwnedColumns(1)},
                                {"block.down", OwnedRows(0)},
                                {"block.odown", OwnedRows(1)}});
  const auto add = [&](const char* name, const Body& body) {
    out.push_back({std::string("owners: ") + name, build, owners, body});
  };
  const auto up = [](BlockImpl& m, const Tensor& x) { return m.Call("up", x); };
  const auto other = [](BlockImpl& m, const Tensor& x) { return m.Call("other", x); };
  add("a product of what two ranks own", [=](BlockImpl& m, const Tensor& x) {
    return at::bmm(up(m, x).softmax(-1).transpose(1, 2), other(m, x)).sum({1, 2});
  });
  add("a product of what two ranks own, without its gradient", [=](BlockImpl& m, const Tensor& x) {
    return m.b * at::bmm(up(m, x).softmax(-1).transpose(1, 2), other(m, x)).detach().sum({1, 2});
  });
  add("a product of the sums of two",
      [=](BlockImpl& m, const Tensor& x) { return up(m, x).softmax(-1).pow(2).sum(-1) * other(m, x).exp().sum(-1); });
  add("terms of another beside a softmax", [=](BlockImpl& m, const Tensor& x) {
    return (up(m, x).softmax(-1) + m.Call("odown", other(m, x)).sum(-1, true)).pow(2).sum(-1);
  });
  add("a residual beside a softmax, right",
      [=](BlockImpl& m, const Tensor& x) { return (up(m, x).softmax(-1) + x.sum(-1, true)).sum(-1); });
  add("a number added in place to a sum",
      [=](BlockImpl& m, const Tensor& x) { return up(m, x).softmax(-1).pow(2).sum(-1).add_(1); });
  add("joined with the input", [=](BlockImpl& m, const Tensor& x) {
    return at::cat({up(m, x).softmax(-1), x}, -1).sum(-1);
  });
  add("the cosine of a sum of rows", [=](BlockImpl& m, const Tensor& x) {
    return up(m, x).softmax(-1).transpose(1, 2).reshape({-1, 3}).sum(0).cos();
  });
  add("the cosine of a product with itself", [=](BlockImpl& m, const Tensor& x) {
    const Tensor h = up(m, x).tanh();
    return at::bmm(h, h.transpose(1, 2)).cos().sum(-1);
  });
  add("the first half of both joined", [=](BlockImpl& m, const Tensor& x) {
    return at::cat({up(m, x), other(m, x)}, -1).narrow(-1, 0, 8).exp().sum(-1);
  });
  add("softmax in rows of both joined, right", [=](BlockImpl& m, const Tensor& x) {
    return at::cat({up(m, x), other(m, x)}, -1).view({2, 3, -1, 8}).softmax(-1).pow(2).sum({-2, -1});
  });
  add("softmax in one row of both joined", [=](BlockImpl& m, const Tensor& x) {
    return at::cat({up(m, x), other(m, x)}, -1).view({2, 3, 1, -1}).softmax(-1).pow(2).sum({-2, -1});
  });
  add("a loop as often as one owns features", [=](BlockImpl& m, const Tensor& x) {
    const Tensor h = up(m, x).tanh();
    Tensor y = m.Call("down", h) + m.Call("odown", other(m, x));
    for (int64_t i = 0; i < h.size(-1); ++i) y = y + y;
    return y;
  });
  out.push_back({"owners: scaled by the size of the owned dim, right", Layers({{"up", 8}, {"down", 4, 8, false}}),
                 Around({{"block.up", OwnedColumns(0)}, {"block.down", OwnedRows(0)}}),
                 [=](BlockImpl& m, const Tensor& x) {
                   const Tensor h = up(m, x);
                   return m.Call("down", h * (1.0 / static_cast<double>(h.size(-1))));
                 }});
  out.push_back({"owners: a shared parameter added and summed, right", Layers({{"up", 8}}),
                 Around({{"block.up", OwnedColumns(0)}}),
                 [=](BlockImpl& m, const Tensor& x) { return (up(m, x) + m.b).sum(-1); }});
  out.push_back({"owners: attention of one head, right", Layers({{"q", 8}, {"k", 8}, {"v", 8}, {"down", 4, 8, false}}),
                 Around({{"block.{q,k,v}", OwnedColumns(0)}, {"block.down", OwnedRows(0)}}),
                 [](BlockImpl& m, const Tensor& x) {
                   const Tensor s = at::bmm(m.Call("q", x), m.Call("k", x).transpose(1, 2)).softmax(-1);
                   return m.Call("down", at::bmm(s, m.Call("v", x)));
                 }});
}

}  // namespace

Forwards OwnerForwards() {
  Forwards out;
  AddOneFeature(out);
  AddOwnedSizes(out);
  AddTermsBesideOwned(out);
  AddOwners(out);
  return out;
}

}  // namespace moonshard::test::adversarial
