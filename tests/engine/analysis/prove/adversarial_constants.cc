// Constants as long as a shard: equal elements, fewer of them on each rank than one rank has. Sums of them are terms,
// and the gradients of what was made as long as them are terms too.
#include "tests/engine/analysis/prove/adversarial.h"

namespace moonshard::test::adversarial {
namespace {

using at::Tensor;
using Function = std::function<Tensor(const Tensor&)>;

// A parameter made as long as shards of several lengths. Its gradient is a sum over the shard: the plan is right where
// the parameter is shared, and wrong where it is replicated.
void AddGradients(Forwards& out) {
  const auto both = [&](const char* name, int64_t features, const Layout& rows, const Layout& columns,
                        const Body& body) {
    for (const bool shared : {false, true}) {
      const Layout& of_b = shared ? kShared : kReplicated;
      Styles styles = Around({{"block.up", Columns(rows, columns, of_b)}}, of_b, of_b);
      styles["block"].params["v"] = of_b;
      out.push_back({std::string("gradients: ") + name + (shared ? ", right" : ", not summed"), WithVector(features),
                     styles, body});
    }
  };
  const Layout rows = Layout::Shard(0);
  const Layout columns = Layout::Shard(-1);
  const Layout fused_rows = Layout::Packed(0, {{3, 0}, {3, 0}});
  const Layout fused_columns = Layout::Packed(-1, {{3, 0}, {3, 0}});
  const Body zeros = [](BlockImpl& m, const Tensor& x) { return (m.b + at::zeros_like(m.Call("up", x))).sum(-1); };
  both("b and zeros, one element a rank", 2, rows, columns, zeros);
  both("b and zeros", 8, rows, columns, zeros);
  both("b and zeros, uneven", 7, rows, columns, zeros);
  both("b and zeros, uneven fused", 6, fused_rows, fused_columns, zeros);
  const Body softmax = [](BlockImpl& m, const Tensor& x) {
    const Tensor k = m.parameter["v"] + at::zeros_like(m.Call("up", x)).unsqueeze(-1);
    return k.softmax(-1).pow(2).sum({-2, -1});
  };
  both("softmax of v and zeros, one element a rank", 2, rows, columns, softmax);
  both("softmax of v and zeros", 8, rows, columns, softmax);
  both("softmax of v and zeros, uneven fused", 6, fused_rows, fused_columns, softmax);
  both("b times ones, one element a rank", 2, rows, columns, [](BlockImpl& m, const Tensor& x) {
    return (m.b.view({1, 1, 1}) * at::ones_like(m.Call("up", x))).sum(-1);
  });
  both("a gate of b and zeros, one element a rank", 2, rows, columns,
       [](BlockImpl& m, const Tensor& x) { return (m.b.sigmoid() + at::zeros_like(m.Call("up", x))).exp().sum(-1); });
  both("tanh of b times ones, summed over rows too", 2, rows, columns, [](BlockImpl& m, const Tensor& x) {
    return (m.b * at::ones_like(m.Call("up", x)) * x.detach()[0][0][0]).tanh().sum({-1, 1});
  });
  both("b and zeros, squeezed behind the sum", 2, rows, columns,
       [](BlockImpl& m, const Tensor& x) { return (m.b + at::zeros_like(m.Call("up", x))).sum(-1, true).squeeze(-1); });
  both("b and zeros, joined with rows, one element a rank", 2, rows, columns,
       [](BlockImpl& m, const Tensor& x) { return (m.b + at::zeros_like(m.Call("up", x))).flatten(1).tanh().sum(-1); });
  both("b and zeros, joined with all, one element a rank", 2, rows, columns, [](BlockImpl& m, const Tensor& x) {
    return (m.b + at::zeros_like(m.Call("up", x))).reshape({-1}).tanh().sum(-1);
  });
  both("b and zeros in another dim, one element a rank", 2, rows, columns,
       [](BlockImpl& m, const Tensor& x) { return (m.b + at::zeros_like(m.Call("up", x)).transpose(1, 2)).sum(1); });
}

// As above, through a function of k = v and zeros [2, 3, features, 4]: along the last dim, which no rank shards.
void AddFunctions(Forwards& out) {
  const std::vector<std::pair<const char*, Function>> functions = {
      {"softmax", [](const Tensor& k) { return k.softmax(-1).pow(2); }},
      {"log_softmax", [](const Tensor& k) { return k.log_softmax(-1).exp().pow(3); }},
      {"cumsum", [](const Tensor& k) { return k.cumsum(-1).exp(); }},
      {"cumprod", [](const Tensor& k) { return k.add(3).cumprod(-1); }},
      {"sort", [](const Tensor& k) { return std::get<0>(k.sort(-1)).cumsum(-1).exp(); }},
      {"max", [](const Tensor& k) { return std::get<0>(k.max(-1)).exp(); }},
      {"amax", [](const Tensor& k) { return k.amax(-1).exp(); }},
      {"topk", [](const Tensor& k) { return std::get<0>(k.topk(2, -1)).exp(); }},
      {"prod", [](const Tensor& k) { return k.add(3).prod(-1); }},
      {"var", [](const Tensor& k) { return k.var(-1).exp(); }},
      {"mean", [](const Tensor& k) { return k.exp().mean(-1); }},
      {"norm", [](const Tensor& k) { return k.norm(2, -1); }},
      {"logsumexp", [](const Tensor& k) { return k.logsumexp(-1); }},
      {"index",
       [](const Tensor& k) {
         return k.index({at::indexing::Ellipsis, torch::tensor({2, 0, 2})}).exp();
       }},
      {"index_select",
       [](const Tensor& k) {
         return k.index_select(-1, torch::tensor({2, 0, 2})).exp();
       }},
      {"gather", [](const Tensor& k) { return k.gather(-1, at::zeros(k.sizes(), at::kLong)).exp(); }},
      {"narrow", [](const Tensor& k) { return k.narrow(-1, 1, 2).exp(); }},
      {"select", [](const Tensor& k) { return k.select(-1, 1).exp(); }},
      {"unfold", [](const Tensor& k) { return k.unfold(-1, 2, 1).sum(-1).exp(); }},
      {"flip", [](const Tensor& k) { return k.flip({-1}).cumsum(-1).exp(); }},
      {"roll", [](const Tensor& k) { return k.roll({1}, {-1}).cumsum(-1).exp(); }},
      {"pad",
       [](const Tensor& k) {
         return at::constant_pad_nd(k, {1, 1}).cumsum(-1).exp();
       }},
      {"repeat",
       [](const Tensor& k) {
         return k.repeat({1, 1, 1, 2}).cumsum(-1).exp();
       }},
      {"layer_norm", [](const Tensor& k) { return at::layer_norm(k, {4}).exp(); }},
      {"chunk", [](const Tensor& k) { return (k.chunk(2, -1)[0] * k.chunk(2, -1)[1].exp()).sum(-1); }},
      {"unbind", [](const Tensor& k) { return k.unbind(-1)[0] * k.unbind(-1)[1].exp(); }},
      {"view",
       [](const Tensor& k) {
         return k.reshape({2, 3, -1, 2, 2}).sum(-1).exp();
       }},
      {"flatten", [](const Tensor& k) { return k.flatten(2).exp(); }},
      {"transpose", [](const Tensor& k) { return k.transpose(-1, -2).softmax(-2).pow(2); }},
      {"matmul",
       [](const Tensor& k) {
         return at::matmul(k, at::linspace(-1, 1, 12, at::kDouble).view({4, 3})).exp();
       }},
      {"tril", [](const Tensor& k) { return k.unsqueeze(-1).mul(at::ones({4}, at::kDouble)).tril().sum(-1).exp(); }},
      {"diagonal", [](const Tensor& k) { return at::mul(k.unsqueeze(-1), k.unsqueeze(-2)).diagonal(0, -1, -2).exp(); }},
      {"where", [](const Tensor& k) { return at::where(k > 0, k.exp(), k * 2); }},
      {"masked_fill", [](const Tensor& k) { return k.masked_fill(k > 0.5, 0).exp(); }},
      {"clamp", [](const Tensor& k) { return k.clamp(-0.5, 0.5).exp(); }},
      {"stack",
       [](const Tensor& k) {
         return at::stack({k, k.exp()}, -1).sum(-1).exp();
       }},
      {"cat",
       [](const Tensor& k) {
         return at::cat({k, k.exp()}, -1).cumsum(-1).exp();
       }},
      {"glu", [](const Tensor& k) { return at::glu(k, -1); }},
      {"pow", [](const Tensor& k) { return at::pow(k.abs() + 1, k); }},
      {"smooth_l1", [](const Tensor& k) { return at::smooth_l1_loss(k, at::zeros_like(k), 0); }},
      {"einsum",
       [](const Tensor& k) {
         return at::einsum("abcd,abce->abcde", {k, k.exp()}).sum(-1);
       }},
      {"bilinear",
       [](const Tensor& k) {
         return at::bilinear(k, k.exp(), at::linspace(-1, 1, 32, at::kDouble).view({2, 4, 4}));
       }},
      {"addcmul", [](const Tensor& k) { return at::addcmul(k, k, k.exp()); }},
      {"lerp", [](const Tensor& k) { return at::lerp(k, k.exp(), 0.3); }},
      {"cosine_similarity", [](const Tensor& k) { return at::cosine_similarity(k, k.exp(), -1); }},
      {"index_add",
       [](const Tensor& k) {
         const Tensor columns = k.sum({0, 1, 2}).unsqueeze(-1).expand({4, 4});
         return at::zeros({4, 4}, at::kDouble).index_add(0, torch::tensor({0, 1, 0, 1}), columns).sum(-1);
       }},
      {"scatter_add",
       [](const Tensor& k) { return at::zeros_like(k).scatter_add(-1, at::zeros(k.sizes(), at::kLong), k).exp(); }},
  };
  for (const int64_t features : {int64_t{8}, int64_t{2}}) {
    for (const auto& [name, f] : functions) {
      for (const bool shared : {false, true}) {
        const Layout& of_v = shared ? kShared : kReplicated;
        Styles styles = Around({{"block.up", Columns(Layout::Shard(0), Layout::Shard(-1), of_v)}}, of_v, of_v);
        styles["block"].params["v"] = of_v;
        out.push_back({std::string("functions: ") + name + (features == 2 ? " of one element a rank" : "") +
                           (shared ? ", right" : ", its gradient not summed"),
                       WithVector(features), styles, [f = f](BlockImpl& m, const Tensor& x) {
                         return f(m.parameter["v"] + at::zeros_like(m.Call("up", x)).unsqueeze(-1)).sum();
                       }});
      }
    }
  }
}

// A constant beside something whose backward runs other operators than at one rank, so that operators behind it are not
// compared.
void AddBehindDivergence(Forwards& out) {
  const std::vector<std::pair<const char*, Function>> functions = {
      {"nothing", [](const Tensor& k) { return k.exp(); }},
      {"softmax", [](const Tensor& k) { return k.softmax(-1).pow(2); }},
      {"log_softmax", [](const Tensor& k) { return k.log_softmax(-1).exp().pow(3); }},
      {"index_select",
       [](const Tensor& k) {
         return k.index_select(-1, torch::tensor({2, 0, 2})).exp();
       }},
      {"prod", [](const Tensor& k) { return k.add(3).prod(-1); }},
  };
  const auto constant = [](BlockImpl& m, const Tensor& h) {
    return m.parameter["v"] + at::zeros_like(h).unsqueeze(-1);
  };
  Styles one_side = Around({{"block.up", Columns()}});
  Style one;
  one.name = "one";
  one.params = {{"weight", kReplicated}};
  one.outputs = {Redistribution{kReplicated, kShared}};
  const Build with_one = [](BlockImpl& m) {
    WithVector(2)(m);
    m.AddLinear("one", 4, 1, false);
  };
  for (const bool shared : {false, true}) {
    const std::string end = shared ? ", right" : ", its gradient not summed";
    one_side["block"].params["v"] = shared ? kShared : kReplicated;
    Styles gate = Around({{"block.up", Columns(Layout::Shard(0), Layout::Shard(-1), kReplicated)}, {"block.one", one}},
                         kReplicated, kReplicated);
    gate["block"].params["v"] = shared ? kShared : kReplicated;
    for (const auto& [name, f] : functions) {
      out.push_back({std::string("beside a sum of the input: ") + name + end, WithVector(2), one_side,
                     [f = f, constant](BlockImpl& m, const Tensor& x) {
                       const Tensor h = m.Call("up", x);
                       return f(constant(m, h)).sum() + (h * x.sum(-1, true)).sum();
                     }});
      out.push_back({std::string("beside a gate: ") + name + end, with_one, gate,
                     [f = f, constant](BlockImpl& m, const Tensor& x) {
                       const Tensor h = m.Call("up", x);
                       return f(constant(m, h)).sum() + (h * m.Call("one", x)).sum();
                     }});
    }
  }
  out.push_back({"beside a sum of the input: it alone, right", WithVector(2), one_side,
                 [](BlockImpl& m, const Tensor& x) { return (m.Call("up", x) * x.sum(-1, true)).sum(); }});
}

// Memory that the host fills, by the size of a shard or in other sizes.
void AddHostMemory(Forwards& out) {
  const auto add = [&](const char* name, int64_t features, const Body& body) {
    out.push_back({std::string("memory of the host: ") + name, Layers({{"up", features}}), Replicated(), body});
  };
  const auto n = [](BlockImpl& m, const Tensor& x) { return m.Call("up", x).size(-1); };
  const Body copied = [=](BlockImpl& m, const Tensor& x) {
    Tensor e = at::empty({2, 3, n(m, x)}, at::kDouble);
    e.copy_(m.b);
    return x.sum(-1) + e.sum(-1);
  };
  add("as long as an uneven shard, copied into", 7, copied);
  add("as long as a shard, copied into", 8, copied);
  add("as long as an uneven shard, copied into without a gradient", 7, [=](BlockImpl& m, const Tensor& x) {
    Tensor e = at::empty({2, 3, n(m, x)}, at::kDouble);
    e.copy_(m.b.detach());
    return x * e.sum(-1, true);
  });
  add("as long as a shard and one more, copied into", 8, [=](BlockImpl& m, const Tensor& x) {
    Tensor e = at::empty({n(m, x), n(m, x) + 1}, at::kDouble);
    e.copy_(m.b);
    return x.sum(-1) + e.sum();
  });
  const Body vector = [=](BlockImpl& m, const Tensor& x) {
    return x * torch::tensor(std::vector<double>(static_cast<size_t>(n(m, x)), 0.5), at::kDouble).sum();
  };
  add("a vector as long as an uneven shard", 7, vector);
  add("a vector as long as a shard", 8, vector);
  add("a number in a vector", 8, [=](BlockImpl& m, const Tensor& x) {
    return x * torch::tensor(std::vector<double>{1.0 / static_cast<double>(n(m, x))}, at::kDouble);
  });
  add("a number in a list", 8, [=](BlockImpl& m, const Tensor& x) {
    return x * torch::tensor({1.0 / static_cast<double>(n(m, x))}, at::kDouble);
  });
  add("a number by itself", 8, [=](BlockImpl& m, const Tensor& x) {
    return x * torch::tensor(1.0 / static_cast<double>(n(m, x)), at::kDouble);
  });
  add("a number, copied and viewed", 8, [=](BlockImpl& m, const Tensor& x) {
    return x * torch::tensor({1.0 / static_cast<double>(n(m, x))}, at::kDouble).clone().view({1, 1}).expand({3, 4});
  });
  add("four numbers, one by the size of a shard", 8, [=](BlockImpl& m, const Tensor& x) {
    return x * torch::tensor({1.0, 2.0, 3.0, static_cast<double>(n(m, x))}, at::kDouble);
  });
  add("a number in memory, added to in place", 8, [=](BlockImpl& m, const Tensor& x) {
    Tensor t = torch::tensor(std::vector<double>{1.0 / static_cast<double>(n(m, x))}, at::kDouble);
    t.add_(1);
    return x * t;
  });
  add("a number in memory, copied into other memory", 8, [=](BlockImpl& m, const Tensor& x) {
    Tensor t = at::empty({1}, at::kDouble);
    t.copy_(torch::tensor(std::vector<double>{1.0 / static_cast<double>(n(m, x))}, at::kDouble));
    return x * t.to(at::kFloat).to(at::kDouble);
  });
  add("filled by an operator, as long as an uneven shard", 7,
      [=](BlockImpl& m, const Tensor& x) { return x * at::empty({n(m, x)}, at::kDouble).fill_(0.5).sum(); });
  add("four numbers, right", 8, [=](BlockImpl& m, const Tensor& x) {
    return x * torch::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble) + 0 * n(m, x);
  });
  out.push_back({"an element of a local constant by index, right", Layers({{"up", 8}}), Replicated(),
                 [](BlockImpl& m, const Tensor& x) {
                   const Tensor k = m.b * at::ones_like(m.Call("up", x));
                   return x.sum(-1) + k.index_select(-1, torch::zeros({1}, at::kLong)).sum(-1);
                 }});
}

// What fits where a shard or terms are declared.
void AddDeclared(Forwards& out) {
  const auto leaf = [](const LeafImpl::Body& body) { return [body](BlockImpl& m) { m.AddLeaf(body); }; };
  Style style;
  style.name = "leaf";
  style.params = {{"b", kShared}};
  style.outputs = {Redistribution{Layout::Shard(-1), kReplicated}};
  const Styles shard = Around({{"block.leaf", style}}, kReplicated, kReplicated, std::nullopt);
  const Body times = [](BlockImpl& m, const Tensor& x) { return x * m.leaf(x).sum(-1, true); };
  out.push_back({"declared a shard: a parameter in full",
                 leaf([](LeafImpl& m, const Tensor&) { return Expanded(m.b, 8); }), shard,
                 [](BlockImpl& m, const Tensor& x) { return x.sum(-1) + m.leaf(x).sum(-1); }});
  out.push_back({"declared a shard: ones in full", leaf([](LeafImpl&, const Tensor&) {
                   return at::ones({2, 3, 8}, at::kDouble);
                 }),
                 shard, times});
  Style kept = style;
  kept.outputs = {Redistribution{Layout::Shard(-1), Layout::Shard(-1)}};
  out.push_back({"declared a shard: ones in full, not gathered", leaf([](LeafImpl&, const Tensor&) {
                   return at::ones({2, 3, 8}, at::kDouble);
                 }),
                 Around({{"block.leaf", kept}}), times});
  const auto two = [&](const char* name, const Body& body) {
    out.push_back({name, Layers({{"two", 2}}), Around({{"block.two", Columns()}}), body});
  };
  two("declared terms: the cosine of a squeezed shard, without its gradient",
      [](BlockImpl& m, const Tensor& x) { return m.b * m.Call("two", x).detach().squeeze(-1).sum().cos(); });
  two("declared terms: the cosine of a squeezed shard",
      [](BlockImpl& m, const Tensor& x) { return m.b * m.Call("two", x).squeeze(-1).sum().cos(); });
  two("declared terms: a squeezed shard, squared",
      [](BlockImpl& m, const Tensor& x) { return m.b * (m.Call("two", x).squeeze(-1) + 1).pow(2); });
  two("declared terms: ones like a shard, squeezed",
      [](BlockImpl& m, const Tensor& x) { return m.b * at::ones_like(m.Call("two", x)).squeeze(-1).sum(-1).exp(); });
  const Styles columns = Around({{"block.up", Columns()}});
  const auto rows = [](const Tensor& k, const Tensor& b) {
    return at::cat({k, k}).view({2, -1}).sum(-1).exp().sum() * b;
  };
  out.push_back({"joined and taken apart in rows: constants", Layers({{"up", 8}}), columns,
                 [=](BlockImpl& m, const Tensor&) { return rows(at::ones_like(m.linear.at("up")->bias) * 0.1, m.b); }});
  out.push_back({"joined and taken apart in rows: shards", Layers({{"up", 8}}), columns,
                 [=](BlockImpl& m, const Tensor&) { return rows(m.linear.at("up")->bias, m.b); }});
}

}  // namespace

Forwards ConstantForwards() {
  Forwards out;
  AddGradients(out);
  AddFunctions(out);
  AddBehindDivergence(out);
  AddHostMemory(out);
  AddDeclared(out);
  return out;
}

}  // namespace moonshard::test::adversarial
