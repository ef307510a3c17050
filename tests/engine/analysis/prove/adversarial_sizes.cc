// Sizes of a shard in places where the layouts do not see them: the shapes of views of tensors that all ranks have, how
// often a loop runs, where a slice begins, which branch is taken.
#include <torch/csrc/autograd/autograd.h>

#include "tests/engine/analysis/prove/adversarial.h"

namespace moonshard::test::adversarial {
namespace {

using at::Tensor;

void AddViews(Forwards& out) {
  const Build build = [](BlockImpl& m) {
    m.AddLinear("up", 4, 8);
    m.AddParameter("q", torch::linspace(-1, 2, 4));
  };
  Styles styles = Replicated();
  styles["block"].params["q"] = kReplicated;
  const auto n = [](BlockImpl& m, const Tensor& x) { return m.Call("up", x).size(-1); };
  const auto add = [&](const char* name, const Body& body) {
    out.push_back({std::string("views by the size of a shard: ") + name, build, styles, body});
  };
  add("a shuffle in fours, right", [](BlockImpl& m, const Tensor& x) {
    return x.reshape({4, -1}).t().reshape({2, 3, 4}) * m.parameter["q"];
  });
  add("as_strided from a place of its own, right",
      [](BlockImpl& m, const Tensor& x) { return x.contiguous().as_strided({4}, {1}, 3) * m.parameter["q"]; });
  add("a shuffle", [=](BlockImpl& m, const Tensor& x) {
    return x.reshape({n(m, x), -1}).t().reshape({2, 3, 4}) * m.parameter["q"];
  });
  add("a shuffle by unflatten", [=](BlockImpl& m, const Tensor& x) {
    return x.flatten().unflatten(0, {n(m, x), -1}).transpose(0, 1).flatten().view({2, 3, 4}) * m.parameter["q"];
  });
  add("the place of as_strided",
      [=](BlockImpl& m, const Tensor& x) { return x.contiguous().as_strided({4}, {1}, n(m, x)) * m.parameter["q"]; });
  add("the stride of as_strided", [=](BlockImpl& m, const Tensor& x) {
    return x.contiguous().as_strided({4}, {n(m, x) / 4}, 0) * m.parameter["q"];
  });
  add("transposed or not", [=](BlockImpl& m, const Tensor& x) {
    const Tensor y = x.narrow(1, 0, 2).reshape({4, 4});
    return (n(m, x) == 8 ? y.t() : y) * m.parameter["q"];
  });
  add("permuted in another way", [=](BlockImpl& m, const Tensor& x) {
    const Tensor y = x.narrow(1, 0, 2).narrow(2, 0, 2);
    return (n(m, x) == 8 ? y.permute({0, 2, 1}) : y.permute({1, 2, 0})).sum(0).flatten() * m.parameter["q"];
  });
  add("repeated as often as a shard is long, summed", [=](BlockImpl& m, const Tensor& x) {
    return x.unsqueeze(0).expand({n(m, x), 2, 3, 4}).sum(0) * m.parameter["q"];
  });
  add("rolled along other dims", [=](BlockImpl& m, const Tensor& x) {
    return (n(m, x) == 8 ? x.roll({1}, {1}) : x.roll({1, 1}, {1, 2})) * m.parameter["q"];
  });
  add("flipped along other dims", [=](BlockImpl& m, const Tensor& x) {
    return x.flip(n(m, x) == 8 ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 2}) * m.parameter["q"];
  });
  out.push_back({"views by the size of a shard: a slice outside of modules", build, styles,
                 [](BlockImpl& m, const Tensor& x) { return x * m.parameter["q"] + 0 * m.Call("up", x).size(0); },
                 [](NetImpl& net, const Tensor& y) {
                   return y.flatten().narrow(0, net.block->linear.at("up")->weight.size(0), 6).pow(2).mean();
                 }});
}

void AddLoops(Forwards& out) {
  const auto n = [](BlockImpl& m, const Tensor& x) { return m.Call("up", x).size(-1); };
  const auto add = [&](const char* name, const Body& body) {
    out.push_back({std::string("loops: ") + name, Layers({{"up", 8}}), Replicated(), body});
  };
  add("five times, right", [](BlockImpl& m, const Tensor& x) {
    Tensor y = x;
    for (int64_t i = 0; i < 5; ++i) y = y + m.b;
    return y + 0 * m.Call("up", x).size(0);
  });
  add("a sum, as often as a shard is long", [=](BlockImpl& m, const Tensor& x) {
    Tensor y = x;
    for (int64_t i = 0; i < n(m, x); ++i) y = y + m.b;
    return y;
  });
  add("tanh, as often as a shard is long", [=](BlockImpl& m, const Tensor& x) {
    const int64_t times = n(m, x);
    Tensor y = x;
    for (int64_t i = 0; i < times; ++i) y = (y * 1.3).tanh();
    return y;
  });
  add("a sum and a mean, once more than half as often", [=](BlockImpl& m, const Tensor& x) {
    const int64_t times = n(m, x) / 2 + 1;
    Tensor y = x;
    for (int64_t i = 0; i < times; ++i) y = y - y.mean(-1, true) * 0.5;
    return y.exp();
  });
  add("a sum beside a shard, as often as it is long", [=](BlockImpl& m, const Tensor& x) {
    Tensor h = m.Call("up", x.detach());
    Tensor y = x;
    for (int64_t i = 0; i < n(m, x); ++i) {
      h = h.tanh();
      y = y + m.b;
    }
    return y + 0 * h.detach().size(0);
  });
  Style mid;
  mid.name = "mid";
  mid.params = {{"weight", kReplicated}, {"bias", kReplicated}};
  Styles with_mid = Replicated();
  with_mid["block.mid"] = mid;
  out.push_back({"loops: a layer, called as often as a shard is long", Layers({{"up", 8}, {"mid", 4}}), with_mid,
                 [=](BlockImpl& m, const Tensor& x) {
                   Tensor y = x;
                   for (int64_t i = 0, times = n(m, x); i < times; ++i) y = m.Call("mid", y).tanh();
                   return y;
                 }});
  out.push_back({"loops: terms added to themselves", Layers({{"up", 8}, {"down", 4, 8, false}}),
                 Around({{"block.up", Columns()}, {"block.down", Rows()}}), [](BlockImpl& m, const Tensor& x) {
                   const Tensor h = m.Call("up", x).tanh();
                   Tensor y = m.Call("down", h);
                   for (int64_t i = 0; i < h.size(-1); ++i) y = y + y.detach();
                   return y;
                 }});
}

void AddPlaces(Forwards& out) {
  const Build up = Layers({{"up", 8}});
  const Styles fused =
      Around({{"block.up", Columns(Layout::Packed(0, {{4, 0}, {4, 0}}), Layout::Packed(-1, {{4, 0}, {4, 0}}))}});
  const auto add = [&](const char* name, const Body& body) {
    out.push_back({std::string("places in a fused dim: ") + name, up, fused, body});
  };
  add("the second half, right", [](BlockImpl& m, const Tensor& x) {
    const Tensor h = m.Call("up", x);
    return h.narrow(-1, h.size(-1) / 2, h.size(-1) / 2).exp().sum(-1);
  });
  add("a gated unit, right", [](BlockImpl& m, const Tensor& x) {
    const Tensor h = m.Call("up", x);
    const int64_t half = h.size(-1) / 2;
    return (h.slice(-1, 0, half).sigmoid() * h.slice(-1, -half)).sum(-1);
  });
  add("a part by its place at one rank", [](BlockImpl& m, const Tensor& x) {
    const Tensor h = m.Call("up", x);
    return h.narrow(-1, h.size(-1) - 4, h.size(-1) / 2).exp().sum(-1);
  });
  add("a gate by its place at one rank", [](BlockImpl& m, const Tensor& x) {
    const Tensor h = m.Call("up", x);
    const int64_t half = h.size(-1) / 2;
    const Tensor gate = h.slice(-1, h.size(-1) - 4, h.size(-1) - 4 + half);
    return (gate.sigmoid() * h.slice(-1, 0, half)).sum(-1);
  });
  add("the part that a branch picks", [](BlockImpl& m, const Tensor& x) {
    const Tensor h = m.Call("up", x);
    const std::vector<Tensor> parts = h.split(h.size(-1) / 2, -1);
    return parts[h.size(-1) == 8 ? 1 : 0].exp().sum(-1);
  });
  const Styles plain = Around({{"block.up", Columns()}});
  out.push_back({"places in a shard: every other feature, right", up, plain, [](BlockImpl& m, const Tensor& x) {
                   return m.Call("up", x).slice(-1, 1, std::nullopt, 2).exp().sum(-1);
                 }});
  out.push_back(
      {"places in a shard: another begin of every other feature", up, plain, [](BlockImpl& m, const Tensor& x) {
         const Tensor h = m.Call("up", x);
         return h.slice(-1, h.size(-1) / 8, std::nullopt, 2).exp().sum(-1);
       }});
  Styles both = fused;
  both["block.other"] = Columns();
  const Build two = Layers({{"up", 8}, {"other", 8}});
  out.push_back({"places in a fused dim: times a plain shard", two, both,
                 [](BlockImpl& m, const Tensor& x) { return (m.Call("up", x) * m.Call("other", x)).sum(-1); }});
  out.push_back(
      {"places in a fused dim: its gradient times a plain shard", two, both, [](BlockImpl& m, const Tensor& x) {
         const Tensor h = m.Call("up", x).detach().requires_grad_(true);
         const int64_t half = h.size(-1) / 2;
         const Tensor f = (h.narrow(-1, 0, half).exp() * h.narrow(-1, half, half)).sum();
         return (torch::autograd::grad({f}, {h})[0] * m.Call("other", x)).sum(-1);
       }});
}

// One of two tensors of one layout, by the size of a shard.
void AddPicks(Forwards& out) {
  const Build two = Layers({{"up", 8}, {"other", 8}});
  const Styles columns = Around({{"block.up", Columns()}, {"block.other", Columns()}});
  const auto add = [&](const char* name, const Build& build, const Styles& styles, const Body& body) {
    out.push_back({std::string("picks: ") + name, build, styles, body});
  };
  add("of two results", two, columns, [](BlockImpl& m, const Tensor& x) {
    const Tensor h = m.Call("up", x);
    const Tensor one = (h * 2).exp();
    const Tensor other = (h * 3).exp();
    return (h.size(-1) == 8 ? one : other).sum(-1);
  });
  add("of two results that are viewed and copied", two, columns, [](BlockImpl& m, const Tensor& x) {
    const Tensor h = m.Call("up", x);
    const Tensor one = (h * 2).exp().flatten(0, 1).contiguous();
    const Tensor other = (h * 3).exp().flatten(0, 1).contiguous();
    return (h.size(-1) == 8 ? one : other).clone().view({2, 3, -1}).sum(-1);
  });
  add("the same of two results, right", two, columns, [](BlockImpl& m, const Tensor& x) {
    const Tensor h = m.Call("up", x);
    const Tensor one = (h * 2).exp();
    const Tensor other = (h * 3).exp();
    return (h.size(-1) >= 4 ? one : other).sum(-1);
  });
  add("of two layers", two, columns, [](BlockImpl& m, const Tensor& x) {
    const Tensor one = m.Call("up", x);
    const Tensor other = m.Call("other", x);
    return (one.size(-1) == 8 ? one : other).exp().sum(-1);
  });
  add("the order of two operands", two, columns, [](BlockImpl& m, const Tensor& x) {
    const Tensor one = m.Call("up", x).tanh();
    const Tensor other = m.Call("other", x).tanh();
    return (one.size(-1) == 8 ? one - other : other - one).exp().sum(-1);
  });
  add("two operands, right", two, columns, [](BlockImpl& m, const Tensor& x) {
    const Tensor one = m.Call("up", x).tanh();
    const Tensor other = m.Call("other", x).tanh();
    return (one - other).exp().sum(-1);
  });
  Styles terms = Around({{"block.up", Columns()}, {"block.one", Rows(kReplicated)}, {"block.other", Rows(kReplicated)}},
                        kReplicated, kReplicated, std::nullopt);
  terms["block.up"] = Columns(Layout::Shard(0), Layout::Shard(-1), kReplicated);
  const Build behind = Layers({{"up", 8}, {"one", 4, 8, false}, {"other", 4, 8, false}});
  add("of two results behind a reduction", behind, terms, [](BlockImpl& m, const Tensor& x) {
    const Tensor h = m.Call("up", x).tanh();
    const Tensor one = m.Call("one", h);
    const Tensor other = m.Call("other", h);
    return (h.size(-1) == 8 ? one : other).exp();
  });
  add("results behind a reduction, right", behind, terms, [](BlockImpl& m, const Tensor& x) {
    const Tensor h = m.Call("up", x).tanh();
    return m.Call("one", h).exp() - m.Call("other", h);
  });
  const Build vectors = [build = Layers({{"up", 8}})](BlockImpl& m) {
    build(m);
    m.AddParameter("v", torch::full({1}, 0.7));
    m.AddParameter("w", torch::full({1}, 0.2));
  };
  Styles shared = Around({{"block.up", Columns()}});
  shared["block"].params["v"] = shared["block"].params["w"] = kShared;
  add("of two parameters", vectors, shared, [](BlockImpl& m, const Tensor& x) {
    const Tensor h = m.Call("up", x);
    return (h * m.parameter[h.size(-1) == 8 ? "v" : "w"]).exp().sum(-1);
  });
  add("two parameters, right", vectors, shared, [](BlockImpl& m, const Tensor& x) {
    return (m.Call("up", x) * m.parameter["v"] + m.parameter["w"]).exp().sum(-1);
  });
}

}  // namespace

Forwards SizeForwards() {
  Forwards out;
  AddViews(out);
  AddLoops(out);
  AddPlaces(out);
  AddPicks(out);
  return out;
}

}  // namespace moonshard::test::adversarial
