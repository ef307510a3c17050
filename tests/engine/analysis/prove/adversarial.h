// Forwards that an adversary of the prover writes: each is a module of a few lines under a plan, most of them wrong
// in a way that fits the declared layouts. The groups are by what the forward misuses; adversarial_forwards_test.cc
// judges them by their numbers on ranks.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/nn/conv.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "tests/support/styles.h"

namespace moonshard::test::adversarial {

// A planned module inside the block, with a parameter b [1].
struct LeafImpl : torch::nn::Module {
  using Body = std::function<at::Tensor(LeafImpl&, const at::Tensor&)>;
  explicit LeafImpl(Body f) : body(std::move(f)) { b = register_parameter("b", torch::full({1}, 0.3)); }
  at::Tensor forward(const at::Tensor& x) { return body(*this, x); }
  Body body;
  at::Tensor b;
};
MOONSHARD_MODULE(Leaf);

// The module of the adversary: a parameter b [1], and the layers and parameters that `build` adds. Its input is
// [2, 3, 4].
struct BlockImpl : torch::nn::Module {
  using Build = std::function<void(BlockImpl&)>;
  using Body = std::function<at::Tensor(BlockImpl&, const at::Tensor&)>;
  BlockImpl(const Build& build, Body f) : body(std::move(f)) {
    b = register_parameter("b", torch::full({1}, 0.3));
    build(*this);
  }
  void AddLinear(const std::string& name, int64_t in, int64_t out, bool bias = true) {
    linear.emplace(name, register_module(name, nn::Linear(torch::nn::LinearOptions(in, out).bias(bias))));
  }
  void AddConv(const std::string& name, const torch::nn::Conv1dOptions& options) {
    conv.emplace(name, register_module(name, nn::Conv1d(options)));
  }
  void AddLeaf(const LeafImpl::Body& f) { leaf = register_module("leaf", Leaf(f)); }
  void AddParameter(const std::string& name, const at::Tensor& value) {
    parameter[name] = register_parameter(name, value);
  }
  at::Tensor Call(const std::string& name, const at::Tensor& x) { return linear.at(name)(x); }
  at::Tensor forward(const at::Tensor& x) { return body(*this, x); }

  Body body;
  std::map<std::string, nn::Linear> linear;
  std::map<std::string, nn::Conv1d> conv;
  std::map<std::string, at::Tensor> parameter;
  Leaf leaf = nullptr;
  at::Tensor b;
};
MOONSHARD_MODULE(Block);

// A replicated layer `before`, and the block behind it.
struct NetImpl : torch::nn::Module {
  NetImpl(const BlockImpl::Build& build, const BlockImpl::Body& body) {
    before = register_module("before", nn::Linear(torch::nn::LinearOptions(4, 4)));
    block = register_module("block", Block(build, body));
  }
  nn::Linear before = nullptr;
  Block block = nullptr;
};

using Build = BlockImpl::Build;
using Body = BlockImpl::Body;
using Styles = std::map<std::string, Style>;

struct Forward {
  std::string name;
  Build build;
  Styles styles;
  Body body;
  std::function<at::Tensor(NetImpl&, const at::Tensor&)> loss = {};  // of the block's result; none: the mean square
};
using Forwards = std::vector<Forward>;

inline const Layout kReplicated = Layout::Replicate();
inline const Layout kShared = Layout::Shared();
inline const Layout kTerms = Layout::Partial();

// Layers of `out` features from `in`.
struct LayerOf {
  std::string name;
  int64_t out;
  int64_t in = 4;
  bool bias = true;
};
Build Layers(std::vector<LayerOf> layers);
// A layer "up" of `features`, and a parameter v of 4 elements.
Build WithVector(int64_t features);

// Output features in shards of layout `weight`; the output has layout `out`, the input `in`, and is used as shared.
Style Columns(const Layout& weight = Layout::Shard(0), const Layout& out = Layout::Shard(-1),
              const Layout& in = kShared);
Style OwnedColumns(int64_t owner, const Layout& in = kShared);
// Input features in shards; the output is terms, redistributed to `to`.
Style Rows(const Layout& to = kTerms);
Style OwnedRows(int64_t owner, const Layout& to = kTerms);
// A style for the channels of a convolution's output; `in`: the layout of its input.
Style OutChannels(const Layout& in);

// `layers` and the style of the block: its parameter b, its input (from replicate to `in`), and what its result is
// declared to be before it is redistributed to replicate; nullopt: not planned.
Styles Around(Styles layers, const Layout& b = kShared, const Layout& in = kShared,
              const std::optional<Layout>& out = kTerms);
// The same without anything shared: the layer "up", its input and b are replicated.
Styles Replicated(const std::optional<Layout>& out = std::nullopt, const std::string& layer = "up");

// b, as long as `n` in the last of three dims.
at::Tensor Expanded(const at::Tensor& b, int64_t n);

// Of one element that one rank has, and of tensors that one rank owns.
Forwards OwnerForwards();
// Of elements that a mask has chosen, and of sizes that follow values.
Forwards ChoiceForwards();
// Of constants that are as long as a shard, and their gradients.
Forwards ConstantForwards();
// Of views, loops, places and branches that follow the size of a shard.
Forwards SizeForwards();
// Of lookups in a table, and of layers that are right and hard to see through.
Forwards LayerForwards();

}  // namespace moonshard::test::adversarial
