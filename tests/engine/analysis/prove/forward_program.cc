#include "tests/engine/analysis/prove/forward_program.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/normalization.h>

#include "engine/core/base/check.h"
#include "engine/layout/shards.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"
#include "tests/support/styles.h"

namespace moonshard::test {

at::Tensor RandomValues(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

namespace {

constexpr int64_t kTableRows = 8;  // rows of a table

MOONSHARD_MODULE_IMPL(FuzzConv1d, torch::nn::Conv1dImpl);
MOONSHARD_MODULE_IMPL(FuzzConv2d, torch::nn::Conv2dImpl);
MOONSHARD_MODULE_IMPL(FuzzGroupNorm, torch::nn::GroupNormImpl);
MOONSHARD_MODULE_IMPL(FuzzBatchNorm, torch::nn::BatchNorm1dImpl);

// A layer with parameters of its own, `sizes` by name, and a forward over them.
struct FuzzLayerImpl : torch::nn::Module {
  using Parameters = std::map<std::string, at::Tensor>;
  using Body = std::function<at::Tensor(const Parameters&, const at::Tensor&)>;
  FuzzLayerImpl(const std::map<std::string, std::vector<int64_t>>& sizes, Body b) : body(std::move(b)) {
    for (const auto& [name, shape] : sizes) register_parameter(name, at::zeros(shape));
  }
  at::Tensor forward(const at::Tensor& x) {
    Parameters all;
    for (const auto& item : named_parameters()) all[item.key()] = item.value();
    return body(all, x);
  }
  Body body;
};
MOONSHARD_MODULE(FuzzLayer);

struct FuzzPairImpl : torch::nn::Module {
  FuzzPairImpl(int64_t a, int64_t b, int64_t out) {
    weight = register_parameter("weight", at::zeros({out, a, b}));
    bias = register_parameter("bias", at::zeros({out}));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return at::bilinear(x, y, weight, std::optional<at::Tensor>(bias));
  }
  at::Tensor weight;
  at::Tensor bias;
};
MOONSHARD_MODULE(FuzzPair);

struct MadeLayer {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const Values&)> call;
};

template <class Holder>
MadeLayer Calling(Holder layer) {
  return {layer.ptr(), [layer](const Values& t) mutable { return layer(t[0]); }};
}

// Ids of x, one for each element but those of the last dim: a table has kTableRows rows.
at::Tensor IdsOf(const at::Tensor& x) {
  return x.detach().select(-1, 0).mul(2.7).add(4).floor().clamp(0, kTableRows - 1).to(at::kLong);
}

// The layers, by the name of the operator; numbers are sizes.
MadeLayer MakeLayer(const ForwardStep& step) {
  const std::vector<int64_t>& n = step.numbers;
  if (step.op == "Linear") return Calling(nn::Linear(torch::nn::LinearOptions(n[0], n[1])));
  if (step.op == "LinearNoBias") return Calling(nn::Linear(torch::nn::LinearOptions(n[0], n[1]).bias(false)));
  if (step.op == "LayerNorm") return Calling(nn::LayerNorm(torch::nn::LayerNormOptions({n[0]})));
  if (step.op == "GroupNorm") return Calling(FuzzGroupNorm(torch::nn::GroupNormOptions(n[1], n[0])));
  if (step.op == "BatchNorm")
    return Calling(FuzzBatchNorm(torch::nn::BatchNorm1dOptions(n[0]).track_running_stats(false)));
  if (step.op == "Conv1d")
    return Calling(FuzzConv1d(torch::nn::Conv1dOptions(n[0], n[1], 3).padding(1).groups(n[2]).bias(n[3] == 1)));
  if (step.op == "Conv2d")
    return Calling(FuzzConv2d(torch::nn::Conv2dOptions(n[0], n[1], 1 + 2 * n[3]).padding(n[3]).groups(n[2])));
  // The groups of this rank's channels: a forward for shards.
  if (step.op == "OwnGroups") {
    const int64_t of_group = n[0] / n[1];
    return Calling(FuzzLayer(std::map<std::string, std::vector<int64_t>>{{"weight", {n[0]}}, {"bias", {n[0]}}},
                             [of_group](const FuzzLayerImpl::Parameters& p, const at::Tensor& x) {
                               return at::group_norm(x, x.size(1) / of_group, p.at("weight"), p.at("bias"));
                             }));
  }
  if (step.op == "Depthwise") {
    return Calling(FuzzLayer(std::map<std::string, std::vector<int64_t>>{{"weight", {n[0], 1, 3}}, {"bias", {n[0]}}},
                             [](const FuzzLayerImpl::Parameters& p, const at::Tensor& x) {
                               return at::conv1d(x, p.at("weight"), p.at("bias"), 1, 1, 1, x.size(1));
                             }));
  }
  if (step.op == "Embedding") {
    nn::Embedding table(torch::nn::EmbeddingOptions(kTableRows, n[0]));
    return {table.ptr(), [table](const Values& t) mutable { return table(IdsOf(t[0])); }};
  }
  if (step.op == "EmbeddingBag") {
    const int64_t mode = n[1];
    return Calling(FuzzLayer(std::map<std::string, std::vector<int64_t>>{{"weight", {kTableRows, n[0]}}},
                             [mode](const FuzzLayerImpl::Parameters& p, const at::Tensor& x) {
                               const at::Tensor ids = IdsOf(x).flatten(1);
                               const at::Tensor begins = at::arange(0, ids.numel(), ids.size(1), at::kLong);
                               return std::get<0>(
                                   at::embedding_bag(p.at("weight"), ids.flatten(), begins, false, mode));
                             }));
  }
  if (step.op == "Scale") {
    return Calling(
        FuzzLayer(std::map<std::string, std::vector<int64_t>>{{"weight", {n[0]}}},
                  [](const FuzzLayerImpl::Parameters& p, const at::Tensor& x) { return x * p.at("weight"); }));
  }
  if (step.op == "Shift") {
    return Calling(
        FuzzLayer(std::map<std::string, std::vector<int64_t>>{{"weight", {n[0]}}},
                  [](const FuzzLayerImpl::Parameters& p, const at::Tensor& x) { return x + p.at("weight"); }));
  }
  if (step.op == "Prelu") {
    return Calling(FuzzLayer(
        std::map<std::string, std::vector<int64_t>>{{"weight", {n[0]}}},
        [](const FuzzLayerImpl::Parameters& p, const at::Tensor& x) { return at::prelu(x, p.at("weight")); }));
  }
  if (step.op == "Lstm" || step.op == "Gru") {
    const bool lstm = step.op == "Lstm";
    const int64_t gates = lstm ? 4 : 3;
    return Calling(FuzzLayer(
        std::map<std::string, std::vector<int64_t>>{
            {"w", {gates * n[1], n[0]}}, {"r", {gates * n[1], n[1]}}, {"b", {gates * n[1]}}, {"c", {gates * n[1]}}},
        [lstm](const FuzzLayerImpl::Parameters& p, const at::Tensor& x) {
          const at::Tensor state = x.new_zeros({1, x.size(0), p.at("r").size(1)});
          const Values weights = {p.at("w"), p.at("r"), p.at("b"), p.at("c")};
          if (lstm) return std::get<0>(at::lstm(x, {state, state}, weights, true, 1, 0.0, false, false, true));
          return std::get<0>(at::gru(x, state, weights, true, 1, 0.0, false, false, true));
        }));
  }
  if (step.op == "Pass") {
    return Calling(FuzzLayer(std::map<std::string, std::vector<int64_t>>{},
                             [](const FuzzLayerImpl::Parameters&, const at::Tensor& x) { return x; }));
  }
  if (step.op == "Bilinear") {
    FuzzPair layer(n[0], n[1], n[2]);
    return {layer.ptr(), [layer](const Values& t) mutable { return layer(t[0], t[1]); }};
  }
  return {};
}

bool IsLayer(const ForwardStep& step) { return std::isupper(static_cast<unsigned char>(step.op[0])) != 0; }
std::string LayerName(const ForwardStep& step) { return step.op + std::to_string(step.id); }

// Parameters away from 0 and 1, and from each other.
void FillParameters(torch::nn::Module& module, uint64_t seed) {
  const at::NoGradGuard guard;
  module.to(at::kDouble);
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    const double fan =
        tensor.dim() > 1 ? std::sqrt(static_cast<double>(tensor.numel()) / static_cast<double>(tensor.size(0))) : 1;
    uint64_t own = seed;
    for (const char c : item.key()) own = own * 131 + static_cast<uint64_t>(c);
    tensor.copy_(RandomValues(tensor.sizes(), own).mul(0.9 / fan).add(tensor.dim() > 1 ? 0.07 : 0.4));
  }
}

const ForwardOperator& OperatorOf(const std::string& name) {
  const std::vector<ForwardOperator>& all = ForwardOperators();
  const auto found = std::ranges::find(all, name, &ForwardOperator::name);
  Check(found != all.end(), "no operator '" + name + "'");
  return *found;
}

struct FuzzBlockImpl : torch::nn::Module {
  explicit FuzzBlockImpl(const ForwardProgram& program) {
    for (const ForwardStep& step : program.steps) {
      std::vector<int> of = step.of;
      if (!IsLayer(step)) {
        const auto& body = OperatorOf(step.op).body;
        steps.emplace_back(of, [&body, numbers = step.numbers](const Values& t) { return body(t, numbers); });
        continue;
      }
      MadeLayer layer = MakeLayer(step);
      FillParameters(*layer.module, program.values * 977 + static_cast<uint64_t>(step.id));
      register_module(LayerName(step), layer.module);
      steps.emplace_back(of, std::move(layer.call));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    Values values = {x};
    for (const auto& [of, call] : steps) {
      Values operands;
      for (const int value : of) operands.push_back(values[static_cast<size_t>(value)]);
      values.push_back(call(operands));
    }
    return values.back();
  }
  std::vector<std::pair<std::vector<int>, std::function<at::Tensor(const Values&)>>> steps;
};
MOONSHARD_MODULE(FuzzBlock);

struct FuzzRootImpl : torch::nn::Module {
  explicit FuzzRootImpl(const ForwardProgram& program) : block(register_module("block", FuzzBlock(program))) {}
  FuzzBlock block;
};

}  // namespace

ForwardNet MakeForwardNet(const ForwardProgram& program) {
  auto root = std::make_shared<FuzzRootImpl>(program);
  return {root, [root](const at::Tensor& x) { return root->block(x); }};
}

bool ForwardProgram::SplitsBatch() const { return mesh.find("dp") != std::string::npos; }

std::string ForwardProgram::ToText() const {
  std::ostringstream out;
  out << "x: " << at::IntArrayRef(input) << "; mesh " << mesh << "\n";
  const auto name = [](int value) { return value == 0 ? std::string("x") : "v" + std::to_string(value); };
  for (size_t i = 0; i < steps.size(); ++i) {
    const ForwardStep& step = steps[i];
    out << "v" << i + 1 << " = " << (IsLayer(step) ? LayerName(step) : step.op) << "(";
    for (size_t a = 0; a < step.of.size(); ++a) out << (a == 0 ? "" : ", ") << name(step.of[a]);
    for (size_t a = 0; a < step.numbers.size(); ++a) out << (a == 0 ? "; " : ", ") << step.numbers[a];
    out << ")";
    if (step.style) {
      out << " {";
      for (const auto& [parameter, layout] : step.style->params) out << " " << parameter << "=" << layout.ToText();
      out << " }";
      for (const auto& input : step.style->inputs)
        out << " in " << (input ? input->from.ToText() + "->" + input->to.ToText() : "-");
      for (const auto& made : step.style->outputs)
        out << " out " << (made ? made->from.ToText() + "->" + made->to.ToText() : "-");
      if (!step.style->after.empty()) out << " after " << step.style->after.front();
      if (step.style->lookup != Lookup::kPlain) out << " masked lookup";
    }
    out << "\n";
  }
  return out.str();
}

Plan ForwardProgram::ToPlan() const {
  std::vector<std::pair<std::string, Style>> rules;
  for (const ForwardStep& step : steps) {
    if (step.style) rules.emplace_back("block." + LayerName(step), *step.style);
  }
  Plan plan = PlanOfRules("fuzz", rules);
  if (SplitsBatch()) plan.data_parallel.emplace().shards = false;
  return plan;
}

ForwardProgram ForwardProgram::Without(size_t at) const {
  ForwardProgram out = *this;
  const int gone = static_cast<int>(at) + 1;
  const int instead = steps[at].of.empty() ? 0 : steps[at].of.front();
  out.steps.erase(out.steps.begin() + static_cast<std::ptrdiff_t>(at));
  for (ForwardStep& step : out.steps) {
    for (int& value : step.of) value = value == gone ? instead : value > gone ? value - 1 : value;
  }
  return out.Pruned();
}

ForwardProgram ForwardProgram::Pruned() const {
  std::vector<bool> used(steps.size() + 1, false);
  used.back() = true;
  for (size_t i = steps.size(); i-- > 0;) {
    if (!used[i + 1]) continue;
    for (const int value : steps[i].of) used[static_cast<size_t>(value)] = true;
  }
  ForwardProgram out = *this;
  out.steps.clear();
  std::vector<int> renamed = {0};
  for (size_t i = 0; i < steps.size(); ++i) {
    renamed.push_back(static_cast<int>(out.steps.size()) + 1);
    if (!used[i + 1]) continue;
    out.steps.push_back(steps[i]);
    for (int& value : out.steps.back().of) value = renamed[static_cast<size_t>(value)];
  }
  return out;
}

// The generator.
namespace {

constexpr int64_t kRanks = 2;

// What the ranks have of a value, found by its numbers.
struct Held {
  enum class Kind { kReplicate, kShard, kPartial, kOther };
  at::Tensor full;
  Values local;  // of each rank
  Kind kind = Kind::kOther;
  Layout layout;  // kShard
  bool needs_gradient = false;
  bool alike = false;   // a replicate that comes from replicated computation with a gradient
  bool shared = false;  // or from sharded one

  bool is(Kind other) const { return kind == other; }
};

at::Tensor LocalShard(const at::Tensor& full, const Layout& layout, int64_t rank) {
  const int64_t dim = layout.dim < 0 ? layout.dim + full.dim() : layout.dim;
  if (dim < 0 || dim >= full.dim()) return full;
  const auto shards = DimShards::Make(layout.Sized(full.size(dim)), full.size(dim), kRanks);
  if (!shards.ok()) return full;
  Values parts;
  for (const Interval& one : shards.value().of(rank)) parts.push_back(full.narrow(dim, one.begin, one.length));
  return parts.empty() ? full.narrow(dim, 0, 0) : at::cat(parts, dim);
}

bool CloseTo(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && at::allclose(a, b, 1e-9, 1e-11);
}

void FindKind(Held& value) {
  value.kind = Held::Kind::kOther;
  const auto all_close = [&](const std::function<at::Tensor(int64_t)>& want) {
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      if (!CloseTo(value.local[static_cast<size_t>(rank)], want(rank))) return false;
    }
    return true;
  };
  if (all_close([&](int64_t) { return value.full; })) {
    value.kind = Held::Kind::kReplicate;
    return;
  }
  for (int dim = 0; dim < value.full.dim(); ++dim) {
    for (const Layout& layout : {Layout::Shard(dim), Layout::PackedEqually(dim, 2), Layout::PackedEqually(dim, 3)}) {
      if (!layout.parts.empty() && value.full.size(dim) % static_cast<int64_t>(2 * layout.parts.size()) != 0) continue;
      if (!all_close([&](int64_t rank) { return LocalShard(value.full, layout, rank); })) continue;
      value.kind = Held::Kind::kShard;
      value.layout = layout.parts.empty() ? layout : layout.Sized(value.full.size(dim));
      return;
    }
  }
  const bool fits = value.local[0].sizes() == value.full.sizes() && value.local[1].sizes() == value.full.sizes();
  if (fits && CloseTo(value.local[0] + value.local[1], value.full)) value.kind = Held::Kind::kPartial;
}

// The ranks' tensors after a redistribution, as the engine would have them if `from` is true.
Values Redistributed(const Held& value, const Values& local, const Layout& from, const Layout& to) {
  if (from == to || (!from.is_shard() && from.kind != LayoutKind::kPartial && !to.is_shard())) return local;
  at::Tensor full = from.kind == LayoutKind::kPartial ? local[0] + local[1] : local[0];
  if (from.is_shard()) {
    const int64_t dim = from.dim < 0 ? from.dim + local[0].dim() : from.dim;
    full = value.full.defined() && from.parts.empty() ? at::cat(local, dim) : value.full;
  }
  if (!to.is_shard()) return Values(kRanks, full);
  Values out;
  for (int64_t rank = 0; rank < kRanks; ++rank) out.push_back(LocalShard(full, to, rank));
  return out;
}

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed), seed_(seed) {}

  ForwardProgram Make() {
    for (;;) {
      Begin();
      const int64_t wanted = 2 + random_.Below(6);
      for (int tries = 0; tries < 60 && static_cast<int64_t>(program_.steps.size()) < wanted; ++tries) {
        const bool sharded = std::ranges::any_of(held_, [](const Held& one) { return one.is(Held::Kind::kShard); });
        if (random_.Below(10) < (sharded ? 3 : 8)) {
          AddLayer();
        } else {
          AddOperator();
        }
      }
      const bool shards = std::ranges::any_of(program_.steps, [](const ForwardStep& step) {
        return step.style && std::ranges::any_of(step.style->params,
                                                 [](const auto& one) { return one.second[MeshAxis::kTp].is_shard(); });
      });
      if (!shards && program_.mesh.find("tp") != std::string::npos) continue;
      End();
      return program_.Pruned();
    }
  }

 private:
  void Begin() {
    program_ = {};
    held_.clear();
    ids_ = 0;
    wild_ = random_.OneIn(3);
    program_.values = seed_;
    static const std::vector<std::vector<int64_t>> kInputs = {{4, 6},       {4, 8},       {4, 5, 8}, {2, 6, 8},
                                                              {4, 8, 6},    {2, 4, 12},   {4, 3, 4}, {4, 8, 4, 4},
                                                              {2, 4, 6, 4}, {2, 8, 3, 4}, {4, 6, 16}};
    const int64_t mesh = random_.Below(10);
    program_.mesh = mesh < 7 ? "tp=2" : mesh < 9 ? "dp_replicate=2,tp=2" : "dp_replicate=2";
    do program_.input = random_.Of(kInputs);
    while (program_.SplitsBatch() && program_.input[0] < 4);
    Held x;
    x.full = RandomValues(program_.input, seed_ * 31 + 7) * (random_.OneIn(4) ? 4.0 : 1.0);
    x.local = Values(kRanks, x.full);
    x.kind = Held::Kind::kReplicate;
    held_.push_back(x);
  }

  int DrawValue() {
    const auto count = static_cast<int64_t>(held_.size());
    return static_cast<int>(random_.OneIn(3) ? random_.Below(count) : count - 1);
  }

  // Adds the step if it can be computed and its results are worth it.
  bool Take(ForwardStep step, const std::function<at::Tensor(const Values&)>& full,
            const std::function<Values(const std::vector<const Held*>&)>& on_ranks) {
    std::vector<const Held*> operands;
    Values whole;
    for (const int value : step.of) {
      operands.push_back(&held_[static_cast<size_t>(value)]);
      whole.push_back(operands.back()->full);
    }
    Held made;
    try {
      made.full = full(whole);
    } catch (const std::exception&) {
      return false;
    }
    if (made.full.numel() == 0 || made.full.numel() > 3000 || made.full.dim() > 5) return false;
    if (!made.full.is_floating_point() || !at::isfinite(made.full).all().item<bool>()) return false;
    if (made.full.abs().max().item<double>() > 1e4) return false;
    const bool own_parameters = step.style && !step.style->params.empty();
    made.needs_gradient = own_parameters;
    for (const Held* one : operands) {
      made.needs_gradient = made.needs_gradient || one->needs_gradient;
      made.alike = made.alike || (one->is(Held::Kind::kReplicate) && one->alike);
      made.shared = made.shared || (one->needs_gradient && (!one->is(Held::Kind::kReplicate) || one->shared));
    }
    bool threw = false;
    try {
      made.local = on_ranks(operands);
      FindKind(made);
    } catch (const std::exception&) {
      threw = true;
      made.local = Values(kRanks, made.full);
    }
    const bool mixes = made.alike && made.shared && !step.style;
    if ((threw || mixes || made.is(Held::Kind::kOther)) && !random_.OneIn((threw ? 60 : 12) / (wild_ ? 6 : 1)))
      return false;
    const bool of_shards = std::ranges::any_of(operands, [](const Held* one) { return one->is(Held::Kind::kShard); });
    if (wild_ && !step.style && of_shards && !made.is(Held::Kind::kOther) && random_.OneIn(2)) return false;
    // Of shards of one element the types do not know the dim.
    if (made.is(Held::Kind::kShard) && made.local[1].size(made.layout.dim) < 2 && !random_.OneIn(100)) return false;
    if (made.is(Held::Kind::kOther)) made.local = Values(kRanks, made.full);
    if (!made.is(Held::Kind::kReplicate)) made.alike = false;
    if (own_parameters) made.alike = made.is(Held::Kind::kReplicate) && !made.shared;
    if (step.style && !step.style->outputs.empty() && step.style->outputs[0]) {
      const LayoutKind kind = step.style->outputs[0]->to[MeshAxis::kTp].kind;
      made.alike = kind == LayoutKind::kReplicate;
      made.shared = kind == LayoutKind::kShared;
    } else if (step.op == "Pass" && !step.style->inputs.empty()) {
      made.shared = step.style->inputs[0]->to[MeshAxis::kTp].kind == LayoutKind::kShared;
      made.alike = !made.shared && made.is(Held::Kind::kReplicate);
    }
    program_.steps.push_back(std::move(step));
    held_.push_back(std::move(made));
    return true;
  }

  void AddOperator() {
    const ForwardOperator& op = random_.Of(ForwardOperators());
    ForwardStep step;
    step.op = op.name;
    Values whole;
    for (int a = 0; a < op.arity; ++a) {
      step.of.push_back(DrawValue());
      if (a == 1 && random_.OneIn(2))
        step.of.back() = static_cast<int>(random_.Below(static_cast<int64_t>(held_.size())));
    }
    for (const int value : step.of) whole.push_back(held_[static_cast<size_t>(value)].full);
    const auto numbers = op.draw(random_, whole);
    if (!numbers) return;
    step.numbers = *numbers;
    // What is replicated and used beside shards is shared first, mostly.
    if (op.arity == 2 && !random_.OneIn(wild_ ? 3 : 12)) {
      const auto& a = held_[static_cast<size_t>(step.of[0])];
      const auto& b = held_[static_cast<size_t>(step.of[1])];
      const bool first = a.alike && !b.is(Held::Kind::kReplicate);
      const bool second = b.alike && !a.is(Held::Kind::kReplicate);
      if (first || second) {
        const size_t which = first ? 0 : 1;
        if (!AddPass(step.of[which], Layout::Replicate(), Layout::Shared())) return;
        step.of[which] = static_cast<int>(held_.size()) - 1;
      }
    }
    const auto body = [&op, numbers = step.numbers](const Values& t) { return op.body(t, numbers); };
    Take(step, body, [&](const std::vector<const Held*>& operands) {
      Values out;
      for (size_t rank = 0; rank < kRanks; ++rank) {
        Values local;
        for (const Held* one : operands) local.push_back(one->local[rank]);
        out.push_back(body(local));
      }
      return out;
    });
  }

  bool AddPass(int of, const Layout& from, const Layout& to) {
    ForwardStep step;
    step.op = "Pass";
    step.of = {of};
    step.id = ids_++;
    step.style.emplace();
    step.style->name = "pass";
    step.style->inputs = {Redistribution{from, to}};
    return TakeLayer(step);
  }

  bool TakeLayer(const ForwardStep& step) {
    const MadeLayer layer = MakeLayer(step);
    FillParameters(*layer.module, program_.values * 977 + static_cast<uint64_t>(step.id));
    const at::NoGradGuard guard;
    return Take(step, layer.call, [&](const std::vector<const Held*>& operands) {
      const Style& style = *step.style;
      std::vector<Values> inputs;
      for (size_t i = 0; i < operands.size(); ++i) {
        const bool moved = i < style.inputs.size() && style.inputs[i];
        inputs.push_back(moved ? Redistributed(*operands[i], operands[i]->local, style.inputs[i]->from[MeshAxis::kTp],
                                               style.inputs[i]->to[MeshAxis::kTp])
                               : operands[i]->local);
      }
      Values out;
      at::Tensor late;
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        MadeLayer own = MakeLayer(step);
        FillParameters(*own.module, program_.values * 977 + static_cast<uint64_t>(step.id));
        for (const auto& item : own.module->named_parameters()) {
          const auto found = style.params.find(item.key());
          const bool after = std::ranges::find(style.after, item.key()) != style.after.end();
          if (after) {
            late = item.value().clone();
            item.value().zero_();
          }
          if (found == style.params.end() || !found->second[MeshAxis::kTp].is_shard()) continue;
          item.value().set_data(LocalShard(item.value(), found->second[MeshAxis::kTp], rank).contiguous());
        }
        Values local;
        for (const Values& input : inputs) local.push_back(input[static_cast<size_t>(rank)]);
        out.push_back(own.call(local));
      }
      if (!style.outputs.empty() && style.outputs[0]) {
        out = Redistributed({}, out, style.outputs[0]->from[MeshAxis::kTp], style.outputs[0]->to[MeshAxis::kTp]);
      }
      if (late.defined()) {
        for (at::Tensor& one : out) one = one + late;
      }
      return out;
    });
  }

  Layout AnyLayout(int64_t dims) {
    switch (random_.Below(5)) {
      case 0: return Layout::Replicate();
      case 1: return Layout::Shared();
      case 2: return Layout::Partial();
      case 3: return Layout::PackedEqually(static_cast<int>(random_.Below(dims)), 2);
      default: return Layout::Shard(static_cast<int>(random_.Below(dims)));
    }
  }

  // Some layouts, whatever the layer is.
  Style AnyStyle(const ForwardStep& step, int64_t dims) {
    Style style;
    style.name = "any";
    const MadeLayer layer = MakeLayer(step);
    for (const auto& item : layer.module->named_parameters())
      style.params[item.key()] = AnyLayout(std::max<int64_t>(item.value().dim(), 1));
    for (auto& [name, layout] : style.params) {
      if (layout[MeshAxis::kTp].kind == LayoutKind::kPartial) layout = Layout::Replicate();
    }
    if (random_.OneIn(2)) style.inputs = {Redistribution{AnyLayout(dims), AnyLayout(dims)}};
    if (random_.OneIn(2)) style.outputs = {Redistribution{AnyLayout(dims), AnyLayout(dims)}};
    return style;
  }

  // All parameters of `step` under one layout, x as it is.
  Style Everywhere(const ForwardStep& step, const Held& x, const Layout& layout) {
    Style style;
    style.name = "everywhere";
    const MadeLayer layer = MakeLayer(step);
    for (const auto& item : layer.module->named_parameters()) style.params[item.key()] = layout;
    if (x.is(Held::Kind::kShard)) {
      style.inputs = {Redistribution{x.layout, x.layout}};
      style.outputs = {Redistribution{x.layout, x.layout}};
    }
    return style;
  }

  // A layer for value `x`, and the rule that makes it right.
  void AddLayer() {
    static const std::vector<std::string> kLayers = {
        "Linear",    "Linear", "Linear", "Linear",    "LinearNoBias", "LayerNorm",    "GroupNorm",
        "BatchNorm", "Conv1d", "Conv2d", "Depthwise", "Embedding",    "EmbeddingBag", "Scale",
        "Shift",     "Prelu",  "Lstm",   "Gru",       "Pass",         "Bilinear",     "OwnGroups"};
    ForwardStep step;
    step.op = random_.Of(kLayers);
    // Ids have no gradient, and what they come from would count for nothing.
    step.of = {step.op.starts_with("Embedding") ? 0 : DrawValue()};
    const Held x = held_[static_cast<size_t>(step.of[0])];
    const int64_t dims = x.full.dim();
    if (dims < 2) return;
    step.id = ids_++;
    const int64_t last = x.full.size(-1);
    const int64_t channels = x.full.size(1);
    const int64_t width = random_.OneIn(60) ? 5 : random_.Of(std::vector<int64_t>{4, 6, 8, 12});
    const bool is_shard = x.is(Held::Kind::kShard);
    const bool replicate = x.is(Held::Kind::kReplicate);
    const Layout into = x.shared ? Layout::Shared() : Layout::Replicate();
    const bool last_sharded = is_shard && x.layout.dim == dims - 1;
    const bool channels_sharded = is_shard && x.layout.dim == 1;
    Style style;
    style.name = "right";
    // `rows`: the layout of the output features of a product; the input is made shared.
    const auto up = [&](int made_dim, const Layout& rows, const std::vector<std::string>& parameters) {
      for (const std::string& name : parameters) style.params[name] = rows;
      Layout made = rows;
      made.dim = made_dim;
      style.inputs = {Redistribution{into, Layout::Shared()}};
      style.outputs = {Redistribution{made, random_.OneIn(6) ? Layout::Replicate() : made}};
    };
    const auto down = [&](int of_dim, const std::vector<std::string>& parameters, int dim) {
      Layout columns = x.layout;
      columns.dim = of_dim;
      for (const std::string& name : parameters) style.params[name] = columns;
      Layout given = x.layout;
      given.dim = dim;
      style.inputs = {Redistribution{given, given}};
      style.outputs = {Redistribution{Layout::Partial(), Layout::Replicate()}};
    };
    const auto spread = [&] {
      style = Everywhere(step, x, is_shard || x.shared ? Layout::Shared() : Layout::Replicate());
    };
    const Layout rows = random_.OneIn(8)   ? Layout::PackedEqually(0, 2)
                        : random_.OneIn(8) ? Layout::Shard(0, 2)
                                           : Layout::Shard(0);
    if (step.op == "Linear" || step.op == "LinearNoBias") {
      step.numbers = {last, width};
      const bool bias = step.op == "Linear";
      const std::vector<std::string> both =
          bias ? std::vector<std::string>{"weight", "bias"} : std::vector<std::string>{"weight"};
      if (last_sharded) {
        down(1, {"weight"}, -1);
        if (bias) style.after = {"bias"};
        if (bias) style.params["bias"] = Layout::Replicate();
      } else if (replicate && !random_.OneIn(4)) {
        up(-1, rows, both);
      } else {
        spread();
      }
    } else if (step.op == "Embedding") {
      step.numbers = {width};
      if (!replicate) return;
      style.inputs = {Redistribution{Layout::Replicate(), Layout::Replicate()}};
      if (random_.OneIn(3)) {
        style.params["weight"] = Layout::Shard(0);
        style.lookup = Lookup::kMasked;
        style.outputs = {Redistribution{Layout::Partial(), Layout::Replicate()}};
      } else if (random_.OneIn(2)) {
        style.params["weight"] = Layout::Shard(1);
        style.outputs = {Redistribution{Layout::Shard(-1), Layout::Shard(-1)}};
      } else {
        style.params["weight"] = Layout::Replicate();
      }
    } else if (step.op == "EmbeddingBag") {
      step.numbers = {width, random_.Below(2)};
      if (!replicate) return;
      style.params["weight"] = random_.OneIn(2) ? Layout::Shard(1) : Layout::Replicate();
      if (style.params["weight"][MeshAxis::kTp].is_shard())
        style.outputs = {Redistribution{Layout::Shard(-1), Layout::Shard(-1)}};
    } else if (step.op == "Conv1d" || step.op == "Conv2d") {
      if (dims != (step.op == "Conv1d" ? 3 : 4)) return;
      const int64_t groups = channels % 2 == 0 && random_.OneIn(3) ? 2 : 1;
      const int64_t made = 4 * (1 + random_.Below(2));
      const bool down_conv = channels_sharded && groups == 1;
      step.numbers = {channels, made, groups,
                      step.op == "Conv1d" && !down_conv ? 1
                      : step.op == "Conv2d"             ? random_.Below(2)
                                                        : 0};
      if (down_conv && step.op == "Conv1d") {
        down(1, {"weight"}, 1);
      } else if (replicate && groups == 1) {
        up(1, rows,
           step.numbers[3] == 1 || step.op == "Conv2d" ? std::vector<std::string>{"weight", "bias"}
                                                       : std::vector<std::string>{"weight"});
      } else {
        spread();
      }
    } else if (step.op == "Depthwise" || step.op == "OwnGroups" || step.op == "GroupNorm" || step.op == "BatchNorm" ||
               step.op == "Prelu") {
      if (step.op == "Depthwise" && dims != 3) return;
      if (step.op == "BatchNorm" && dims > 3) return;
      const int64_t groups = random_.Of(std::vector<int64_t>{1, 2, 4});
      if (channels % groups != 0) return;
      step.numbers = {channels, groups};
      if (step.op == "GroupNorm") step.numbers = {channels, groups};
      if (channels_sharded) {
        style = Everywhere(step, x, x.layout);
        for (auto& [name, layout] : style.params) layout[MeshAxis::kTp].dim = 0;
      } else {
        spread();
      }
    } else if (step.op == "LayerNorm" || step.op == "Scale" || step.op == "Shift") {
      step.numbers = {last};
      if (last_sharded && step.op != "LayerNorm") {
        style = Everywhere(step, x, x.layout);
        for (auto& [name, layout] : style.params) layout[MeshAxis::kTp].dim = 0;
      } else {
        spread();
      }
    } else if (step.op == "Lstm" || step.op == "Gru") {
      if (dims != 3) return;
      step.numbers = {last, 4};
      spread();
      if (is_shard && x.layout.dim == 0) style.outputs.clear();
    } else if (step.op == "Bilinear") {
      step.of.push_back(DrawValue());
      const Held& y = held_[static_cast<size_t>(step.of[1])];
      if (y.full.dim() != dims || !replicate || !y.is(Held::Kind::kReplicate)) return;
      step.numbers = {last, y.full.size(-1), 4};
      up(-1, Layout::Shard(0), {"weight", "bias"});
      style.inputs.emplace_back(Redistribution{y.shared ? Layout::Shared() : Layout::Replicate(), Layout::Shared()});
    } else if (is_shard) {
      style.inputs = {Redistribution{
          x.layout, random_.OneIn(4) ? Layout::Shard(static_cast<int>(random_.Below(dims))) : Layout::Replicate()}};
    } else if (x.is(Held::Kind::kPartial)) {
      style.inputs = {Redistribution{Layout::Partial(), random_.OneIn(4)
                                                            ? Layout::Shard(static_cast<int>(random_.Below(dims)))
                                                            : Layout::Replicate()}};
    } else if (replicate && !x.shared) {
      style.inputs = {Redistribution{Layout::Replicate(), random_.OneIn(2)
                                                              ? Layout::Shared()
                                                              : Layout::Shard(static_cast<int>(random_.Below(dims)))}};
    } else {
      return;
    }
    step.style = style;
    // A row of the plan that is another one.
    if (random_.OneIn(wild_ ? 4 : 20)) step.style = AnyStyle(step, dims);
    if (random_.OneIn(wild_ ? 8 : 40) && !step.style->outputs.empty()) step.style->outputs.clear();
    TakeLayer(step);
  }

  // The last value is the same on every rank, mostly.
  void End() {
    for (int i = static_cast<int>(held_.size()) - 1; i > 0; --i) {
      const Held& one = held_[static_cast<size_t>(i)];
      if (wild_ && i + 1 == static_cast<int>(held_.size()) && !one.is(Held::Kind::kShard) && !random_.OneIn(4)) return;
      if (one.is(Held::Kind::kOther) || (one.is(Held::Kind::kReplicate) && one.shared)) continue;
      if (one.is(Held::Kind::kReplicate) && i == static_cast<int>(held_.size()) - 1) return;
      if (one.is(Held::Kind::kReplicate)) continue;
      AddPass(i, one.is(Held::Kind::kPartial) ? Layout::Partial() : one.layout, Layout::Replicate());
      return;
    }
  }

  Draws random_;
  uint64_t seed_;
  ForwardProgram program_;
  std::vector<Held> held_;
  int ids_ = 0;
  bool wild_ = false;  // wrong steps are kept more often
};

// Another layout than `layout` for a tensor of `dims` dims. Replicate and shared differ in the gradient alone.
Layout OtherLayout(const Layout& layout, int64_t dims, Draws& draws) {
  const auto dim = [&] { return static_cast<int>(draws.Below(std::max<int64_t>(dims, 1))); };
  if (!layout.is_shard() && !draws.OneIn(4)) {
    if (layout.kind == LayoutKind::kPartial) return draws.OneIn(2) ? Layout::Replicate() : Layout::Shared();
    return layout.kind == LayoutKind::kShared ? Layout::Replicate() : Layout::Shared();
  }
  switch (draws.Below(6)) {
    case 0: return Layout::Replicate();
    case 1: return Layout::Shared();
    case 2: return Layout::Partial();
    case 3: return Layout::Owned(layout.is_shard() ? layout.dim : dim(), draws.Below(kRanks));
    case 4: return Layout::PackedEqually(layout.is_shard() ? layout.dim : dim(), 2);
    default: return Layout::Shard(dim());
  }
}

}  // namespace

std::optional<ForwardProgram> WithOtherPlan(const ForwardProgram& program, Draws& draws) {
  ForwardProgram out = program;
  std::vector<ForwardStep*> ruled;
  for (ForwardStep& step : out.steps) {
    if (step.style) ruled.push_back(&step);
  }
  if (ruled.empty()) return std::nullopt;
  ForwardStep& step = *draws.Of(ruled);
  Style& style = *step.style;
  // Dims of the values are not known here: a redistribution along a dim that there is not is refused.
  const auto dims = static_cast<int64_t>(program.input.size());
  switch (draws.Below(8)) {
    case 0:
    case 1:
    case 2: {
      if (style.params.empty()) return std::nullopt;
      const MadeLayer layer = MakeLayer(step);
      auto parameter = style.params.begin();
      std::advance(parameter, draws.Below(static_cast<int64_t>(style.params.size())));
      const at::Tensor* tensor = layer.module->named_parameters().find(parameter->first);
      Layout& layout = parameter->second[MeshAxis::kTp];
      const Layout other = OtherLayout(layout, tensor == nullptr ? 1 : tensor->dim(), draws);
      if (other.kind == LayoutKind::kPartial) return std::nullopt;
      layout = other;
      break;
    }
    case 3:
    case 4: {
      if (style.inputs.empty() || !style.inputs.back()) return std::nullopt;
      Layout& layout = (draws.OneIn(4) ? style.inputs.back()->from : style.inputs.back()->to)[MeshAxis::kTp];
      layout = OtherLayout(layout, dims, draws);
      break;
    }
    case 5: {
      if (style.outputs.empty() || !style.outputs.front()) return std::nullopt;
      Layout& layout = (draws.OneIn(2) ? style.outputs.front()->from : style.outputs.front()->to)[MeshAxis::kTp];
      layout = OtherLayout(layout, dims, draws);
      break;
    }
    case 6:
      if (draws.OneIn(2)) {
        style.outputs.clear();
      } else {
        style.inputs.clear();
      }
      break;
    default:
      style.after.clear();
      style.lookup = Lookup::kPlain;
      break;
  }
  if (style == *program.steps[static_cast<size_t>(&step - out.steps.data())].style) return std::nullopt;
  return out;
}

ForwardProgram GenerateForward(uint64_t seed) { return Generator(seed).Make(); }

}  // namespace moonshard::test
