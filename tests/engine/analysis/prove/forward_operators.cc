// The operators of random programs. Their numbers are drawn for the full tensors: a dim, a place, a length, or a full size
// that a forward was written with; a body takes other sizes from its tensors, as forwards for shards should.
#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>

#include <cmath>

#include "tests/engine/analysis/prove/forward_program.h"

namespace moonshard::test {
namespace {

using Attributes = std::vector<int64_t>;
using Drawn = std::optional<Attributes>;

int64_t DrawDim(Draws& random, const at::Tensor& t) {
  const int64_t dim = random.Below(t.dim());
  return random.OneIn(3) ? dim - t.dim() : dim;
}

double SizeAlong(const at::Tensor& t, int64_t dim) { return static_cast<double>(t.size(dim)); }

// Sizes of `t` with dims from `dim` on replaced: those in front and behind are read from the tensor.
Attributes WithDims(const at::Tensor& t, int64_t dim, int64_t count, const Attributes& made) {
  Attributes out;
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (d == dim) out.insert(out.end(), made.begin(), made.end());
    if (d < dim || d >= dim + count) out.push_back(t.size(d));
  }
  return out;
}

// A constant along dim `dim` of a tensor of `dims` dims, of `size` elements.
at::Tensor Ramp(const at::Tensor& like, int64_t dim, int64_t size) {
  Attributes sizes(static_cast<size_t>(like.dim()), 1);
  sizes[static_cast<size_t>(dim < 0 ? dim + like.dim() : dim)] = size;
  return at::arange(size, like.options().requires_grad(false)).mul(0.37).add(0.2).view(sizes);
}

at::Tensor AttendTo(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {  // [.., tokens, features]
  return at::softmax(q.matmul(k.transpose(-1, -2)) * 0.3, -1).matmul(v);
}

class OperatorTable {
 public:
  using Unary = at::Tensor (*)(const at::Tensor&);
  using Along = at::Tensor (*)(const at::Tensor&, int64_t);
  using Binary = at::Tensor (*)(const at::Tensor&, const at::Tensor&);

  void Add(const char* name, Unary body) {
    out.push_back({name, 1, [](Draws&, const Values&) -> Drawn { return Attributes(); },
                   [body](const Values& t, const Attributes&) { return body(t[0]); }});
  }
  void Add(const char* name, Along body) {
    out.push_back({name, 1,
                   [](Draws& random, const Values& t) -> Drawn {
                     if (t[0].dim() == 0) return std::nullopt;
                     return Attributes{DrawDim(random, t[0])};
                   },
                   [body](const Values& t, const Attributes& n) { return body(t[0], n[0]); }});
  }
  void Add(const char* name, Binary body) {
    out.push_back({name, 2, [](Draws&, const Values&) -> Drawn { return Attributes(); },
                   [body](const Values& t, const Attributes&) { return body(t[0], t[1]); }});
  }
  void Add(const char* name, int arity, std::function<Drawn(Draws&, const Values&)> draw,
           std::function<at::Tensor(const Values&, const Attributes&)> body) {
    out.push_back({name, arity, std::move(draw), std::move(body)});
  }
  std::vector<ForwardOperator> out;
};

void AddElementwise(OperatorTable& table) {
  table.Add("neg", [](const at::Tensor& t) { return -t; });
  table.Add("exp", [](const at::Tensor& t) { return t.tanh().exp(); });
  table.Add("tanh", [](const at::Tensor& t) { return t.tanh(); });
  table.Add("sigmoid", [](const at::Tensor& t) { return t.sigmoid(); });
  table.Add("relu", [](const at::Tensor& t) { return t.relu(); });
  table.Add("gelu", [](const at::Tensor& t) { return at::gelu(t); });
  table.Add("silu", [](const at::Tensor& t) { return at::silu(t); });
  table.Add("mish", [](const at::Tensor& t) { return at::mish(t); });
  table.Add("elu", [](const at::Tensor& t) { return at::elu(t); });
  table.Add("celu", [](const at::Tensor& t) { return at::celu(t); });
  table.Add("selu", [](const at::Tensor& t) { return at::selu(t); });
  table.Add("softplus", [](const at::Tensor& t) { return at::softplus(t); });
  table.Add("leaky_relu", [](const at::Tensor& t) { return at::leaky_relu(t, 0.1); });
  table.Add("hardtanh", [](const at::Tensor& t) { return at::hardtanh(t); });
  table.Add("hardswish", [](const at::Tensor& t) { return at::hardswish(t); });
  table.Add("hardsigmoid", [](const at::Tensor& t) { return at::hardsigmoid(t); });
  table.Add("log_sigmoid", [](const at::Tensor& t) { return at::log_sigmoid(t); });
  table.Add("abs", [](const at::Tensor& t) { return t.abs(); });
  table.Add("square", [](const at::Tensor& t) { return t.square(); });
  table.Add("sqrt", [](const at::Tensor& t) { return (t.abs() + 1).sqrt(); });
  table.Add("rsqrt", [](const at::Tensor& t) { return (t.square() + 1).rsqrt(); });
  table.Add("log1p", [](const at::Tensor& t) { return t.abs().log1p(); });
  table.Add("reciprocal", [](const at::Tensor& t) { return 1 / (t.square() + 1); });
  table.Add("clamp", [](const at::Tensor& t) { return t.clamp(-0.7, 1.1); });
  table.Add("clamp_min", [](const at::Tensor& t) { return t.clamp_min(-0.3); });
  table.Add("erf", [](const at::Tensor& t) { return t.erf(); });
  table.Add("sin", [](const at::Tensor& t) { return t.sin(); });
  table.Add("cube", [](const at::Tensor& t) { return t.pow(3); });
  table.Add("softsign", [](const at::Tensor& t) { return t / (t.abs() + 1); });
  table.Add("hardshrink", [](const at::Tensor& t) { return at::hardshrink(t, 0.2); });
  table.Add("softshrink", [](const at::Tensor& t) { return at::softshrink(t, 0.2); });
  table.Add("dropout off", [](const at::Tensor& t) { return at::dropout(t, 0.3, false); });
  table.Add("dropout of 0", [](const at::Tensor& t) { return at::dropout(t, 0.0, true); });
  table.Add("clone", [](const at::Tensor& t) { return t.clone(); });
  table.Add("contiguous", [](const at::Tensor& t) { return t.transpose(0, -1).contiguous().transpose(0, -1); });
  table.Add("plus detached", [](const at::Tensor& t) { return t + 2 * t.detach(); });
  table.Add("times 0.4", [](const at::Tensor& t) { return t * 0.4; });
  table.Add("plus 1.5", [](const at::Tensor& t) { return t + 1.5; });
  table.Add("2 minus", [](const at::Tensor& t) { return 2 - t; });
  table.Add("nan_to_num", [](const at::Tensor& t) { return at::nan_to_num(t); });
  table.Add("floor", [](const at::Tensor& t) { return t + t.floor(); });
  table.Add("remainder", [](const at::Tensor& t) { return t.remainder(0.8); });
  table.Add("masked_fill 0", [](const at::Tensor& t) { return t.masked_fill(t > 0.3, 0); });
  table.Add("masked_fill 2", [](const at::Tensor& t) { return t.masked_fill(t > 0.3, 2); });
  table.Add("where number", [](const at::Tensor& t) { return at::where(t > 0, t, 0.1); });
  table.Add("zeros_like", [](const at::Tensor& t) { return t + at::zeros_like(t); });
  table.Add("ones_like", [](const at::Tensor& t) { return t * 0.5 + at::ones_like(t); });
  table.Add("full_like", [](const at::Tensor& t) { return t * at::full_like(t, 0.3); });
  table.Add("ones of local sizes", [](const at::Tensor& t) { return t + at::ones(t.sizes(), at::kDouble); });
  table.Add("new_full", [](const at::Tensor& t) { return t * t.new_full(t.sizes(), 0.8); });
  table.Add("whole mean", [](const at::Tensor& t) { return t - t.mean(); });
  table.Add("whole sum", [](const at::Tensor& t) { return t * t.sum().mul(0.05).sin(); });
  table.Add("whole max", [](const at::Tensor& t) { return t / (1 + t.max().abs()); });
  // In place.
  table.Add("tanh_", [](const at::Tensor& t) { return t.clone().tanh_(); });
  table.Add("sigmoid_", [](const at::Tensor& t) { return t.clone().sigmoid_(); });
  table.Add("relu_", [](const at::Tensor& t) { return t.clone().relu_(); });
  table.Add("exp_", [](const at::Tensor& t) { return t.tanh().exp_(); });
  table.Add("sqrt_", [](const at::Tensor& t) { return t.square().add_(1).sqrt_(); });
  table.Add("mul_", [](const at::Tensor& t) { return t.clone().mul_(0.6); });
  table.Add("add_", [](const at::Tensor& t) { return t.clone().add_(0.6); });
  table.Add("clamp_", [](const at::Tensor& t) { return t.clone().clamp_(-1, 0.5); });
  table.Add("neg_", [](const at::Tensor& t) { return t.clone().neg_(); });
  table.Add("leaky_relu_", [](const at::Tensor& t) {
    at::Tensor y = t.clone();
    return at::leaky_relu_(y, 0.2);
  });
  table.Add("masked_fill_", [](const at::Tensor& t) { return t.clone().masked_fill_(t.detach() > 0.2, 0.4); });
  table.Add("silu_", [](const at::Tensor& t) {
    at::Tensor y = t.clone();
    return at::silu_(y);
  });
  // Of two.
  table.Add("add", [](const at::Tensor& a, const at::Tensor& b) { return a + b; });
  table.Add("sub", [](const at::Tensor& a, const at::Tensor& b) { return a - b; });
  table.Add("mul", [](const at::Tensor& a, const at::Tensor& b) { return a * b; });
  table.Add("div", [](const at::Tensor& a, const at::Tensor& b) { return a / (b.square() + 1); });
  table.Add("gate", [](const at::Tensor& a, const at::Tensor& b) { return at::silu(a) * b; });
  table.Add("maximum", [](const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); });
  table.Add("minimum", [](const at::Tensor& a, const at::Tensor& b) { return at::minimum(a, b); });
  table.Add("where", [](const at::Tensor& a, const at::Tensor& b) { return at::where(a > 0, a, b); });
  table.Add("lerp", [](const at::Tensor& a, const at::Tensor& b) { return at::lerp(a, b, 0.3); });
  table.Add("atan2", [](const at::Tensor& a, const at::Tensor& b) { return at::atan2(a, b.square() + 1); });
  table.Add("addcmul", [](const at::Tensor& a, const at::Tensor& b) { return at::addcmul(a, a, b, 0.7); });
  table.Add("hypot", [](const at::Tensor& a, const at::Tensor& b) { return at::hypot(a + 2, b); });
  table.Add("add_ of", [](const at::Tensor& a, const at::Tensor& b) { return a.clone().add_(b, 0.8); });
  table.Add("mul_ by", [](const at::Tensor& a, const at::Tensor& b) { return a.clone().mul_(b); });
  table.Add("copy_ of", [](const at::Tensor& a, const at::Tensor& b) { return a + at::zeros_like(a).copy_(b); });
  table.Add("masked by", [](const at::Tensor& a, const at::Tensor& b) { return a.masked_fill(b > 0, 0.5); });
  table.Add("masked by, 0", [](const at::Tensor& a, const at::Tensor& b) { return a * (b > 0); });
}

void AddAlongDims(OperatorTable& table) {
  table.Add("softmax", [](const at::Tensor& t, int64_t d) { return at::softmax(t, d); });
  table.Add("log_softmax", [](const at::Tensor& t, int64_t d) { return at::log_softmax(t, d); });
  table.Add("sum", [](const at::Tensor& t, int64_t d) { return t.sum(d); });
  table.Add("sum keeping", [](const at::Tensor& t, int64_t d) { return t.sum(d, true); });
  table.Add("mean", [](const at::Tensor& t, int64_t d) { return t.mean(d); });
  table.Add("centered", [](const at::Tensor& t, int64_t d) { return t - t.mean(d, true); });
  table.Add("var", [](const at::Tensor& t, int64_t d) { return t / (t.var(at::IntArrayRef(d), false, true) + 1); });
  table.Add("std", [](const at::Tensor& t, int64_t d) { return t.std(at::IntArrayRef(d), false, true) + t; });
  table.Add("norm", [](const at::Tensor& t, int64_t d) { return t.norm(2, d, true) * 0.3; });
  table.Add("normalized", [](const at::Tensor& t, int64_t d) { return t / (t.norm(2, d, true) + 0.1); });
  table.Add("norm 3", [](const at::Tensor& t, int64_t d) { return at::linalg_vector_norm(t, 3, at::IntArrayRef(d)); });
  table.Add("rms", [](const at::Tensor& t, int64_t d) { return t * at::rsqrt(t.square().mean(d, true) + 1e-5); });
  table.Add("logsumexp", [](const at::Tensor& t, int64_t d) { return t.logsumexp(d); });
  table.Add("amax", [](const at::Tensor& t, int64_t d) { return t.amax(d); });
  table.Add("amin", [](const at::Tensor& t, int64_t d) { return t - t.amin(d, true); });
  table.Add("max", [](const at::Tensor& t, int64_t d) { return std::get<0>(t.max(d)); });
  table.Add("min", [](const at::Tensor& t, int64_t d) { return std::get<0>(t.min(d, true)) * 2; });
  table.Add("median", [](const at::Tensor& t, int64_t d) { return std::get<0>(t.median(d)); });
  table.Add("kthvalue", [](const at::Tensor& t, int64_t d) { return std::get<0>(t.kthvalue(1, d)); });
  table.Add("prod", [](const at::Tensor& t, int64_t d) { return (t.tanh() + 1.2).prod(d); });
  table.Add("cumsum", [](const at::Tensor& t, int64_t d) { return t.cumsum(d); });
  table.Add("cumprod", [](const at::Tensor& t, int64_t d) { return (t.tanh() + 1.2).cumprod(d); });
  table.Add("logcumsumexp", [](const at::Tensor& t, int64_t d) { return t.logcumsumexp(d); });
  table.Add("cummax", [](const at::Tensor& t, int64_t d) { return std::get<0>(t.cummax(d)); });
  table.Add("cumsum_", [](const at::Tensor& t, int64_t d) { return t.clone().cumsum_(d); });
  table.Add("sort", [](const at::Tensor& t, int64_t d) { return std::get<0>(t.sort(d)); });
  table.Add("argsort", [](const at::Tensor& t, int64_t d) { return at::take_along_dim(t, at::argsort(t, d), d); });
  table.Add("argmax", [](const at::Tensor& t, int64_t d) { return t.gather(d, t.argmax(d, true)); });
  table.Add("one_hot",
            [](const at::Tensor& t, int64_t d) { return t.select(d, 0).unsqueeze(-1) * at::one_hot(t.argmax(d), 9); });
  table.Add("flip", [](const at::Tensor& t, int64_t d) { return t.flip(d); });
  table.Add("roll", [](const at::Tensor& t, int64_t d) { return t.roll(1, d); });
  table.Add("diff", [](const at::Tensor& t, int64_t d) { return at::diff(t, 1, d); });
  table.Add("glu", [](const at::Tensor& t, int64_t d) { return at::glu(t, d); });
  table.Add("swiglu", [](const at::Tensor& t, int64_t d) {
    const Values both = t.chunk(2, d);
    return at::silu(both.at(0)) * both.at(1);
  });
  table.Add("rotated", [](const at::Tensor& t, int64_t d) {
    const Values both = t.chunk(2, d);
    return at::cat({-both.at(1), both.at(0)}, d);
  });
  table.Add("unsqueeze", [](const at::Tensor& t, int64_t d) { return t.unsqueeze(d); });
  table.Add("squeeze", [](const at::Tensor& t, int64_t d) { return t.squeeze(d); });
  table.Add("to front", [](const at::Tensor& t, int64_t d) { return t.movedim(d, 0); });
  table.Add("to back", [](const at::Tensor& t, int64_t d) { return t.movedim(d, -1); });
  table.Add("repeated", [](const at::Tensor& t, int64_t d) { return t.repeat_interleave(2, d); });
  table.Add("expanded", [](const at::Tensor& t, int64_t d) {
    Attributes sizes(static_cast<size_t>(t.dim()) + 1, -1);
    const int64_t dim = d < 0 ? d + t.dim() : d;
    sizes[static_cast<size_t>(dim)] = 2;
    return t.unsqueeze(dim).expand(sizes).clone();
  });
  table.Add("unbind", [](const at::Tensor& t, int64_t d) { return t.unbind(d).back(); });
  table.Add("cat twice", [](const at::Tensor& t, int64_t d) { return at::cat({t, t * 2}, d); });
  table.Add("shifted", [](const at::Tensor& t, int64_t d) {
    return at::cat({at::zeros_like(t.narrow(d, 0, 1)), t.slice(d, 0, -1)}, d);
  });
  // Sizes as numbers.
  table.Add("by size", [](const at::Tensor& t, int64_t d) { return t / SizeAlong(t, d); });
  table.Add("by root of size", [](const at::Tensor& t, int64_t d) { return t / std::sqrt(SizeAlong(t, d)); });
  table.Add("mean by hand", [](const at::Tensor& t, int64_t d) { return t.sum(d, true) / SizeAlong(t, d); });
  table.Add("plus size", [](const at::Tensor& t, int64_t d) { return t + 0.01 * SizeAlong(t, d); });
  table.Add("ramp of local size", [](const at::Tensor& t, int64_t d) { return t + Ramp(t, d, t.size(d)); });
  table.Add("full of size",
            [](const at::Tensor& t, int64_t d) { return t * at::full({}, SizeAlong(t, d), at::kDouble); });
  table.Add("zeros of local size", [](const at::Tensor& t, int64_t d) {
    return t + at::zeros({t.size(d), 1}, at::kDouble).sum();
  });
  table.Add("glued zeros", [](const at::Tensor& t, int64_t d) { return at::cat({t, at::zeros_like(t)}, d); });
  table.Add("eye of local size", [](const at::Tensor& t, int64_t d) {
    return t.transpose(d, -1).matmul(at::eye(t.size(d), at::kDouble) * 0.5).transpose(d, -1);
  });
  table.Add("first half", [](const at::Tensor& t, int64_t d) { return t.narrow(d, 0, t.size(d) / 2); });
  table.Add("halves swapped", [](const at::Tensor& t, int64_t d) {
    return at::cat({t.slice(d, t.size(d) / 2), t.slice(d, 0, t.size(d) / 2)}, d);
  });
  // Written through a view.
  table.Add("slice filled", [](const at::Tensor& t, int64_t d) {
    at::Tensor y = t.clone();
    y.select(d, 0).fill_(0.3);
    return y;
  });
  table.Add("slice scaled", [](const at::Tensor& t, int64_t d) {
    at::Tensor y = t.clone();
    y.narrow(d, 0, 1).mul_(3);
    return y;
  });
  table.Add("written into zeros", [](const at::Tensor& t, int64_t d) {
    Attributes sizes = t.sizes().vec();
    sizes[static_cast<size_t>(d < 0 ? d + t.dim() : d)] += 1;
    at::Tensor y = t.new_zeros(sizes);
    y.narrow(d, 1, t.size(d)).copy_(t);
    return y;
  });
  table.Add("attention over", [](const at::Tensor& t, int64_t d) {
    const at::Tensor q = t.movedim(d, -2);
    return AttendTo(q, q * 0.7, q + 0.1).movedim(-2, d);
  });
}

// A dim and a number along it that fits the full size.
Drawn DimAndPlace(Draws& random, const Values& t) {
  if (t[0].dim() == 0) return std::nullopt;
  const int64_t dim = DrawDim(random, t[0]);
  return Attributes{dim, random.Below(t[0].size(dim))};
}

Drawn TwoDims(Draws& random, const Values& t) {
  if (t[0].dim() < 2) return std::nullopt;
  return Attributes{DrawDim(random, t[0]), DrawDim(random, t[0])};
}

// A dim of two factors: the dim, one factor, the full other one.
Drawn DimOfTwo(Draws& random, const Values& t) {
  if (t[0].dim() == 0) return std::nullopt;
  const int64_t dim = random.Below(t[0].dim());
  const int64_t size = t[0].size(dim);
  Attributes factors;
  for (int64_t one = 1; one <= size; ++one) {
    if (size % one == 0) factors.push_back(one);
  }
  const int64_t one = random.Of(factors);
  return Attributes{dim, one, size / one};
}

void AddPlaces(OperatorTable& table) {
  table.Add("select", 1, DimAndPlace, [](const Values& t, const Attributes& n) { return t[0].select(n[0], n[1]); });
  table.Add("slice to", 1, DimAndPlace,
            [](const Values& t, const Attributes& n) { return t[0].slice(n[0], 0, n[1] + 1); });
  table.Add("slice from", 1, DimAndPlace, [](const Values& t, const Attributes& n) { return t[0].slice(n[0], n[1]); });
  table.Add("narrow", 1, DimAndPlace, [](const Values& t, const Attributes& n) { return t[0].narrow(n[0], n[1], 1); });
  table.Add("every second", 1, DimAndPlace,
            [](const Values& t, const Attributes& n) { return t[0].slice(n[0], n[1] % 2, std::nullopt, 2); });
  table.Add("topk", 1, DimAndPlace,
            [](const Values& t, const Attributes& n) { return std::get<0>(t[0].topk(n[1] + 1, n[0])); });
  table.Add("topk scattered", 1, DimAndPlace, [](const Values& t, const Attributes& n) {
    const auto [values, places] = at::softmax(t[0], n[0]).topk(n[1] + 1, n[0]);
    return at::zeros_like(t[0]).scatter(n[0], places, values);
  });
  table.Add("split", 1, DimAndPlace, [](const Values& t, const Attributes& n) {
    const Values parts = t[0].split(n[1] + 1, n[0]);
    return parts.front() * 2;
  });
  table.Add("split and sum", 1, DimAndPlace, [](const Values& t, const Attributes& n) {
    at::Tensor sum;
    for (const at::Tensor& part : t[0].split(n[1] + 1, n[0])) sum = sum.defined() ? sum + part.sum() : part.sum();
    return t[0] * sum;
  });
  table.Add("chunk softmax", 1, DimAndPlace, [](const Values& t, const Attributes& n) {
    Values out;
    for (const at::Tensor& part : t[0].chunk(n[1] + 1, n[0])) out.push_back(part.softmax(n[0]));
    return at::cat(out, n[0]);
  });
  table.Add("index_select", 1, DimAndPlace, [](const Values& t, const Attributes& n) {
    return t[0].index_select(n[0], at::tensor({n[1], int64_t{0}}, at::kLong));
  });
  table.Add("index", 1, DimAndPlace, [](const Values& t, const Attributes& n) {
    const c10::List<std::optional<at::Tensor>> at(
        {std::optional<at::Tensor>(at::tensor({n[1], int64_t{0}}, at::kLong))});
    return at::index(t[0].movedim(n[0], 0), at).movedim(0, n[0]);
  });
  table.Add("index_add", 1, DimAndPlace, [](const Values& t, const Attributes& n) {
    return t[0].index_add(n[0], at::tensor({n[1]}, at::kLong), t[0].narrow(n[0], 0, 1) * 3);
  });
  table.Add("pad", 1, DimAndPlace, [](const Values& t, const Attributes& n) {
    Attributes pad(2 * static_cast<size_t>(t[0].dim()), 0);
    const int64_t dim = n[0] < 0 ? n[0] + t[0].dim() : n[0];
    pad[2 * static_cast<size_t>(t[0].dim() - 1 - dim) + static_cast<size_t>(n[1] % 2)] = 1;
    return at::constant_pad_nd(t[0], pad, n[1] % 3 == 0 ? 0.0 : 0.6);
  });
  table.Add("pad reflect", 1, DimAndPlace, [](const Values& t, const Attributes& n) {
    return at::pad(t[0].movedim(n[0], -1), {1, 0}, "reflect").movedim(-1, n[0]);
  });
  table.Add("pad replicate", 1, DimAndPlace, [](const Values& t, const Attributes& n) {
    return at::pad(t[0].movedim(n[0], -1), {1, 1}, "replicate").movedim(-1, n[0]);
  });
  table.Add("pad circular", 1, DimAndPlace, [](const Values& t, const Attributes& n) {
    return at::pad(t[0].movedim(n[0], -1), {1, 1}, "circular").movedim(-1, n[0]);
  });
  table.Add("unfold", 1, DimAndPlace,
            [](const Values& t, const Attributes& n) { return t[0].unfold(n[0], n[1] + 2, 1); });
  table.Add("constant of full size", 1, DimAndPlace, [](const Values& t, const Attributes& n) {
    return t[0] + Ramp(t[0], n[0], n[1] + 1);  // n[1] + 1 is the full size now and then
  });
  table.Add(
      "ramp of full size", 1,
      [](Draws& random, const Values& t) -> Drawn {
        if (t[0].dim() == 0) return std::nullopt;
        const int64_t dim = DrawDim(random, t[0]);
        return Attributes{dim, t[0].size(dim)};
      },
      [](const Values& t, const Attributes& n) { return t[0] + Ramp(t[0], n[0], n[1]); });
  table.Add(
      "by full size", 1,
      [](Draws& random, const Values& t) -> Drawn {
        if (t[0].dim() == 0) return std::nullopt;
        return Attributes{t[0].size(DrawDim(random, t[0]))};
      },
      [](const Values& t, const Attributes& n) { return t[0] / static_cast<double>(n[0]); });
}

void AddShapes(OperatorTable& table) {
  table.Add("transpose", 1, TwoDims, [](const Values& t, const Attributes& n) { return t[0].transpose(n[0], n[1]); });
  table.Add("sum of two", 1, TwoDims, [](const Values& t, const Attributes& n) {
    if ((n[0] - n[1]) % t[0].dim() == 0) return t[0].sum(n[0]);
    return t[0].sum({n[0], n[1]});
  });
  table.Add("mean of two", 1, TwoDims, [](const Values& t, const Attributes& n) {
    if ((n[0] - n[1]) % t[0].dim() == 0) return t[0].mean(n[0], true);
    return t[0].mean({n[0], n[1]}, true) + t[0];
  });
  table.Add("diagonal", 1, TwoDims, [](const Values& t, const Attributes& n) { return t[0].diagonal(0, n[0], n[1]); });
  table.Add("tril", 1, TwoDims, [](const Values& t, const Attributes&) { return t[0].tril(); });
  table.Add("permute", 1, TwoDims, [](const Values& t, const Attributes& n) {
    Attributes order;
    for (int64_t d = 0; d < t[0].dim(); ++d) order.push_back((d + n[0] + t[0].dim()) % t[0].dim());
    return t[0].permute(order);
  });
  table.Add("opened, rest in front", 1, DimOfTwo, [](const Values& t, const Attributes& n) {
    return t[0].reshape(WithDims(t[0], n[0], 1, {-1, n[1]}));
  });
  table.Add("opened, rest behind", 1, DimOfTwo, [](const Values& t, const Attributes& n) {
    return t[0].reshape(WithDims(t[0], n[0], 1, {n[1], -1}));
  });
  table.Add("opened by numbers", 1, DimOfTwo, [](const Values& t, const Attributes& n) {
    return t[0].reshape(WithDims(t[0], n[0], 1, {n[1], n[2]}));
  });
  table.Add("unflatten", 1, DimOfTwo, [](const Values& t, const Attributes& n) {
    return t[0].unflatten(n[0], Attributes{-1, n[1]});
  });
  table.Add("view by division", 1, DimOfTwo, [](const Values& t, const Attributes& n) {
    return t[0].reshape(WithDims(t[0], n[0], 1, {t[0].size(n[0]) / n[1], n[1]}));
  });
  table.Add("norm of groups", 1, DimOfTwo, [](const Values& t, const Attributes& n) {
    const at::Tensor rows = t[0].reshape(WithDims(t[0], n[0], 1, {-1, n[1]}));
    return (rows / (rows.norm(2, n[0] + 1, true) + 0.2)).reshape(t[0].sizes());
  });
  table.Add("softmax of groups", 1, DimOfTwo, [](const Values& t, const Attributes& n) {
    return t[0].reshape(WithDims(t[0], n[0], 1, {n[1], -1})).softmax(n[0] + 1).reshape_as(t[0]);
  });
  table.Add(
      "flattened", 1,
      [](Draws& random, const Values& t) -> Drawn {
        if (t[0].dim() < 2) return std::nullopt;
        return Attributes{random.Below(t[0].dim() - 1)};
      },
      [](const Values& t, const Attributes& n) { return t[0].flatten(n[0], n[0] + 1); });
  table.Add(
      "flattened by sizes", 1,
      [](Draws& random, const Values& t) -> Drawn {
        if (t[0].dim() < 2) return std::nullopt;
        return Attributes{random.Below(t[0].dim() - 1)};
      },
      [](const Values& t, const Attributes& n) {
        return t[0].reshape(WithDims(t[0], n[0], 2, {t[0].size(n[0]) * t[0].size(n[0] + 1)}));
      });
  const auto with_sizes = [](Draws&, const Values& t) -> Drawn { return t[0].sizes().vec(); };
  table.Add("view of full sizes", 1, with_sizes, [](const Values& t, const Attributes& n) { return t[0].reshape(n); });
  table.Add("view with full first", 1, with_sizes, [](const Values& t, const Attributes& n) {
    return t[0].reshape({n.empty() ? 1 : n[0], -1});
  });
  table.Add("ramp of full sizes", 1, with_sizes, [](const Values& t, const Attributes& n) {
    int64_t all = 1;
    for (const int64_t size : n) all *= size;
    return t[0] * at::arange(all, at::kDouble).mul(0.11).cos().view(n);
  });
  // Heads [.., tokens, heads * features].
  const auto heads = [](Draws& random, const Values& t) -> Drawn {
    if (t[0].dim() != 3) return std::nullopt;
    const int64_t size = t[0].size(-1);
    Attributes fits;
    for (const int64_t one : {1, 2, 3, 4}) {
      if (size % one == 0) fits.push_back(one);
    }
    return Attributes{random.Of(fits)};
  };
  table.Add("attention of heads", 1, heads, [](const Values& t, const Attributes& n) {
    const at::Tensor q = t[0].view({t[0].size(0), t[0].size(1), -1, n[0]}).transpose(1, 2);
    return AttendTo(q, q * 0.8, q.tanh()).transpose(1, 2).reshape({t[0].size(0), t[0].size(1), -1});
  });
  table.Add("attention of a number of heads", 1, heads, [](const Values& t, const Attributes& n) {
    const at::Tensor q = t[0].view({t[0].size(0), t[0].size(1), n[0], -1}).transpose(1, 2);
    return AttendTo(q, q * 0.8, q.tanh()).transpose(1, 2).reshape({t[0].size(0), t[0].size(1), -1});
  });
  table.Add("fused attention", 1, heads, [](const Values& t, const Attributes& n) {
    const at::Tensor q = t[0].view({t[0].size(0), t[0].size(1), -1, n[0]}).transpose(1, 2);
    return at::scaled_dot_product_attention(q, q * 0.8, q.tanh(), {}, 0.0, true)
        .transpose(1, 2)
        .reshape({t[0].size(0), t[0].size(1), -1});
  });
  table.Add(
      "layer_norm", 1,
      [](Draws& random, const Values& t) -> Drawn {
        if (t[0].dim() == 0) return std::nullopt;
        return Attributes{random.OneIn(2) ? t[0].size(-1) : 0};
      },
      [](const Values& t, const Attributes& n) { return at::layer_norm(t[0], {n[0] == 0 ? t[0].size(-1) : n[0]}); });
  table.Add(
      "group_norm", 1,
      [](Draws& random, const Values& t) -> Drawn {
        if (t[0].dim() < 2) return std::nullopt;
        Drawn drawn = Attributes{random.Of(Attributes{1, 2, 4})};
        if (t[0].size(1) % (*drawn)[0] != 0) return std::nullopt;
        return drawn;
      },
      [](const Values& t, const Attributes& n) { return at::group_norm(t[0], n[0]); });
  table.Add(
      "group_norm by channels of a group", 1,
      [](Draws& random, const Values& t) -> Drawn {
        if (t[0].dim() < 2) return std::nullopt;
        Drawn drawn = Attributes{random.Of(Attributes{1, 2, 4})};
        if (t[0].size(1) % (*drawn)[0] != 0) return std::nullopt;
        return drawn;
      },
      [](const Values& t, const Attributes& n) { return at::group_norm(t[0], t[0].size(1) / n[0]); });
  table.Add(
      "batch_norm", 1,
      [](Draws&, const Values& t) -> Drawn {
        if (t[0].dim() < 2) return std::nullopt;
        return Attributes();
      },
      [](const Values& t, const Attributes&) { return at::batch_norm(t[0], {}, {}, {}, {}, true, 0.1, 1e-5, false); });
  table.Add(
      "instance_norm", 1,
      [](Draws&, const Values& t) -> Drawn {
        if (t[0].dim() < 3 || t[0].size(-1) < 2) return std::nullopt;
        return Attributes();
      },
      [](const Values& t, const Attributes&) {
        return at::instance_norm(t[0], {}, {}, {}, {}, true, 0.1, 1e-5, false);
      });
}

void AddSpatial(OperatorTable& table) {
  const auto of_dims = [](int64_t dims) {
    return [dims](Draws& random, const Values& t) -> Drawn {
      if (t[0].dim() != dims || t[0].size(-1) < 2 || t[0].size(-2) < 2) return std::nullopt;
      return Attributes{2 + random.Below(2)};
    };
  };
  table.Add("avg_pool1d", 1, of_dims(3), [](const Values& t, const Attributes&) { return at::avg_pool1d(t[0], 2); });
  table.Add("max_pool1d", 1, of_dims(3), [](const Values& t, const Attributes&) { return at::max_pool1d(t[0], 2); });
  table.Add("adaptive_avg_pool1d", 1, of_dims(3),
            [](const Values& t, const Attributes& n) { return at::adaptive_avg_pool1d(t[0], n[0] - 1); });
  table.Add("avg_pool2d", 1, of_dims(4), [](const Values& t, const Attributes&) { return at::avg_pool2d(t[0], 2); });
  table.Add("max_pool2d", 1, of_dims(4), [](const Values& t, const Attributes&) { return at::max_pool2d(t[0], 2); });
  table.Add("adaptive_avg_pool2d", 1, of_dims(4), [](const Values& t, const Attributes& n) {
    return at::adaptive_avg_pool2d(t[0], {n[0] - 1, 2});
  });
  table.Add("adaptive_max_pool2d", 1, of_dims(4), [](const Values& t, const Attributes&) {
    return std::get<0>(at::adaptive_max_pool2d(t[0], {1, 2}));
  });
  table.Add("nearest 1d", 1, of_dims(3),
            [](const Values& t, const Attributes& n) { return at::upsample_nearest1d(t[0], {t[0].size(2) * n[0]}); });
  table.Add("linear 1d", 1, of_dims(3), [](const Values& t, const Attributes& n) {
    return at::upsample_linear1d(t[0], {t[0].size(2) * n[0]}, false);
  });
  table.Add("nearest 2d", 1, of_dims(4), [](const Values& t, const Attributes& n) {
    return at::upsample_nearest2d(t[0], {t[0].size(2) * n[0], t[0].size(3)});
  });
  table.Add("bilinear 2d", 1, of_dims(4), [](const Values& t, const Attributes& n) {
    return at::upsample_bilinear2d(t[0], {t[0].size(2) * n[0], t[0].size(3) * 2}, false);
  });
  table.Add("bicubic 2d", 1, of_dims(4), [](const Values& t, const Attributes& n) {
    return at::upsample_bicubic2d(t[0], {t[0].size(2) * n[0], t[0].size(3)}, true);
  });
  const auto channels = [](int64_t of) {
    return [of](Draws&, const Values& t) -> Drawn {
      if (t[0].dim() != 4 || t[0].size(1) % of != 0) return std::nullopt;
      return Attributes{of};
    };
  };
  table.Add("pixel_shuffle", 1, channels(4),
            [](const Values& t, const Attributes&) { return at::pixel_shuffle(t[0], 2); });
  table.Add("channel_shuffle", 1, channels(2),
            [](const Values& t, const Attributes& n) { return at::channel_shuffle(t[0], n[0]); });
  table.Add(
      "pixel_unshuffle", 1,
      [](Draws&, const Values& t) -> Drawn {
        if (t[0].dim() != 4 || t[0].size(2) % 2 != 0 || t[0].size(3) % 2 != 0) return std::nullopt;
        return Attributes();
      },
      [](const Values& t, const Attributes&) { return at::pixel_unshuffle(t[0], 2); });
}

void AddOfSeveral(OperatorTable& table) {
  const auto dim_of_both = [](Draws& random, const Values& t) -> Drawn {
    if (t[0].dim() == 0 || t[0].dim() != t[1].dim()) return std::nullopt;
    return Attributes{DrawDim(random, t[0])};
  };
  table.Add("cat", 2, dim_of_both, [](const Values& t, const Attributes& n) { return at::cat({t[0], t[1]}, n[0]); });
  table.Add("stack", 2, dim_of_both, [](const Values& t, const Attributes& n) {
    return at::stack({t[0], t[1]}, n[0]);
  });
  table.Add("gather by order", 2, dim_of_both,
            [](const Values& t, const Attributes& n) { return t[0].gather(n[0], t[1].argsort(n[0])); });
  table.Add("scatter_add", 2, dim_of_both, [](const Values& t, const Attributes& n) {
    return at::zeros_like(t[0]).scatter_add(n[0], t[1].argsort(n[0]), t[0]);
  });
  table.Add("scatter", 2, dim_of_both, [](const Values& t, const Attributes& n) {
    return t[1].scatter(n[0], t[0].argmax(n[0], true), t[0].narrow(n[0], 0, 1));
  });
  table.Add("cosine_similarity", 2, dim_of_both,
            [](const Values& t, const Attributes& n) { return at::cosine_similarity(t[0], t[1], n[0], 1e-4); });
  table.Add("cross_entropy of targets", 2, dim_of_both, [](const Values& t, const Attributes& n) {
    return -(at::softmax(t[1], n[0]) * at::log_softmax(t[0], n[0])).sum(n[0]);
  });
  table.Add("matmul", [](const at::Tensor& a, const at::Tensor& b) { return a.matmul(b); });
  table.Add("matmul of transposed",
            [](const at::Tensor& a, const at::Tensor& b) { return a.matmul(b.transpose(-1, -2)); });
  table.Add("transposed matmul",
            [](const at::Tensor& a, const at::Tensor& b) { return a.transpose(-1, -2).matmul(b); });
  table.Add("attention of", [](const at::Tensor& a, const at::Tensor& b) { return AttendTo(a, b, b.tanh()); });
  table.Add("outer", [](const at::Tensor& a, const at::Tensor& b) { return a.unsqueeze(-1) * b.unsqueeze(-2); });
  const auto three = [](Draws&, const Values& t) -> Drawn {
    if (t[0].dim() != 3 || t[1].dim() != 3) return std::nullopt;
    return Attributes();
  };
  for (const char* equation :
       {"btd,btd->bt", "btd,bsd->bts", "btd,bte->bde", "btd,bte->bte", "btd,btd->td", "btd,bsd->bd"}) {
    table.Add((std::string("einsum ") + equation).c_str(), 2, three, [equation](const Values& t, const Attributes&) {
      return at::einsum(equation, {t[0], t[1]});
    });
  }
  const auto alike = [](Draws&, const Values& t) -> Drawn {
    if (t[0].sizes() != t[1].sizes() || t[0].dim() == 0 || t[0].is_same(t[1])) return std::nullopt;
    return Attributes();
  };
  table.Add("mse", 2, alike, [](const Values& t, const Attributes&) { return at::mse_loss(t[0], t[1]); });
  table.Add("mse sum", 2, alike,
            [](const Values& t, const Attributes&) { return at::mse_loss(t[0], t[1], at::Reduction::Sum); });
  table.Add("l1", 2, alike, [](const Values& t, const Attributes&) { return at::l1_loss(t[0], t[1]); });
  table.Add("huber", 2, alike, [](const Values& t, const Attributes&) { return at::huber_loss(t[0], t[1]); });
  table.Add("smooth_l1", 2, alike, [](const Values& t, const Attributes&) { return at::smooth_l1_loss(t[0], t[1]); });
  table.Add("kl_div", 2, alike, [](const Values& t, const Attributes&) {
    return at::kl_div(at::log_softmax(t[0], -1), at::softmax(t[1], -1), at::Reduction::Sum);
  });
  table.Add("bce", 2, alike, [](const Values& t, const Attributes&) {
    return at::binary_cross_entropy_with_logits(t[0], t[1].sigmoid());
  });
  table.Add("soft_margin", 2, alike,
            [](const Values& t, const Attributes&) { return at::soft_margin_loss(t[0], t[1].sign()); });
  table.Add("cross_entropy", 2, alike, [](const Values& t, const Attributes&) {
    if (t[0].dim() == 1) return at::cross_entropy_loss(t[0], t[1].argmax(0));
    return at::cross_entropy_loss(t[0], t[1].argmax(1));
  });
}

}  // namespace

const std::vector<ForwardOperator>& ForwardOperators() {
  static const std::vector<ForwardOperator> all = [] {
    OperatorTable table;
    AddElementwise(table);
    AddAlongDims(table);
    AddPlaces(table);
    AddShapes(table);
    AddSpatial(table);
    AddOfSeveral(table);
    return table.out;
  }();
  return all;
}

}  // namespace moonshard::test
