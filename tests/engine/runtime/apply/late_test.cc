// Parameters that a boundary adds after the reduction, along the dim that their module adds them along: thread ranks
// against one rank, in float64.
#include <catch2/catch.hpp>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/nn/modules/conv.h>

#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/conv.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/late_parameter.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/support/ranks.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

// x [(batch,) 5, positions...] -> [(batch,) 6, positions...]: as many channels as positions, so that a bias along the
// wrong dim has the right size.
template <class Conv, class Options>
struct ChannelsImpl : torch::nn::Module {
  ChannelsImpl() {
    up = register_module("up", Conv(Options(5, 4, 3).padding(1)));
    down = register_module("down", Conv(Options(4, 6, 3).padding(1)));
    const torch::NoGradGuard no_grad;
    double step = 0.7;
    for (at::Tensor& p : parameters()) {
      p.set_data(torch::arange(p.numel(), torch::kFloat64).mul(step += 0.3).sin().view(p.sizes()));
    }
  }
  at::Tensor forward(const at::Tensor& x) { return down(up(x).tanh()); }
  Conv up = nullptr;
  Conv down = nullptr;
};
struct Channels1dImpl : ChannelsImpl<nn::Conv1d, torch::nn::Conv1dOptions> {};
struct Channels2dImpl : ChannelsImpl<nn::Conv2d, torch::nn::Conv2dOptions> {};
struct Channels3dImpl : ChannelsImpl<nn::Conv3d, torch::nn::Conv3dOptions> {};

// `channels`: their dim, of what `up` makes and `down` takes.
Plan ChannelsPlan(int channels, const Layout& leaves) {
  Style up = ColwiseStyle();
  up.outputs = {Redistribution{Layout::Shard(channels), Layout::Shard(channels)}};
  Style down = RowwiseStyle(leaves);
  down.inputs = {Redistribution{Layout::Shard(channels), Layout::Shard(channels)}};
  return PlanOfRules("channels", {{"up", up}, {"down", down}});
}

bool IsClose(const at::Tensor& got, const at::Tensor& want) {
  return got.sizes() == want.sizes() &&
         (got - want).abs().max().item<double>() < 1e-12 * want.abs().max().item<double>();
}

template <class Net>
void CheckChannels(const std::vector<int64_t>& sizes, int channels, const Layout& leaves) {
  const at::Tensor given = torch::arange(c10::multiply_integers(sizes), torch::kFloat64).cos().view(sizes);
  auto whole = std::make_shared<Net>();
  const at::Tensor expected = whole->forward(given);
  const at::Tensor factors = torch::arange(expected.numel(), torch::kFloat64).mul(1.7).sin().view(expected.sizes());
  (expected * factors).sum().backward();
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    auto net = std::make_shared<Net>();
    const auto applied = ParallelizeModule(*net, ChannelsPlan(channels, leaves), mesh);
    const at::Tensor y = net->forward(given);
    Layout placed = leaves;
    if (placed.dim < 0) placed.dim += static_cast<int>(expected.dim());
    const auto own = LocalIntervals(expected.sizes().vec(), placed, mesh.shape(), mesh.rank());
    Expect(IsClose(y.detach(), SliceShard(expected.detach(), own)), "the output");
    (y * SliceShard(factors, own)).sum().backward();
    for (const LiveParameter& p : applied->parameters()) {
      const at::Tensor full = whole->named_parameters()[p.path].grad();
      const auto shard = LocalIntervals(p.shape, p.placement, mesh.shape(), mesh.rank());
      Expect(IsClose(p.tensor.grad(), SliceShard(full, shard)), "the gradient of " + p.path);
    }
  });
}

TEST_CASE("the bias of a convolution is added along the channels after the reduction") {
  CheckChannels<Channels1dImpl>({2, 5, 6}, 1, Layout::Replicate());
  CheckChannels<Channels1dImpl>({2, 5, 6}, 1, Layout::Shard(1));  // the channels
  CheckChannels<Channels1dImpl>({2, 5, 6}, -2, Layout::Shard(-2));
  CheckChannels<Channels1dImpl>({2, 5, 6}, 1, Layout::Shard(2));  // the positions
  CheckChannels<Channels1dImpl>({2, 5, 6}, 1, Layout::Shard(-1));
  CheckChannels<Channels1dImpl>({5, 6}, 0, Layout::Replicate());  // unbatched
  CheckChannels<Channels1dImpl>({5, 6}, -2, Layout::Shard(-2));
  CheckChannels<Channels2dImpl>({2, 5, 6, 6}, 1, Layout::Replicate());
  CheckChannels<Channels2dImpl>({2, 5, 4, 6}, 1, Layout::Shard(1));
  CheckChannels<Channels2dImpl>({2, 5, 4, 6}, 1, Layout::Shard(2));
  CheckChannels<Channels2dImpl>({5, 6, 6}, -3, Layout::Shard(-3));
  CheckChannels<Channels3dImpl>({2, 5, 2, 6, 6}, 1, Layout::Replicate());
  CheckChannels<Channels3dImpl>({2, 5, 2, 4, 6}, 1, Layout::Shard(1));
}

std::string ErrorOf(const std::function<void()>& run) {
  try {
    run();
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

// A class of the user's: x [batch, 4, positions] -> [batch, out, positions], a product over the channels.
struct OwnProductImpl : torch::nn::Module {
  explicit OwnProductImpl(int64_t out) {
    weight = register_parameter("weight", torch::arange(out * 4, torch::kFloat64).sin().view({out, 4}));
    bias = register_parameter("bias", torch::arange(out, torch::kFloat64).cos());
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = torch::matmul(weight, x);
    return held ? y : y + bias.unsqueeze(-1);
  }
  bool HoldBack(std::string_view) { return held = true; }
  void ReleaseBack(std::string_view) { held = false; }
  at::Tensor weight;
  at::Tensor bias;
  bool held = false;
};
struct AlongLastImpl : OwnProductImpl {
  using OwnProductImpl::OwnProductImpl;
};
struct AlongChannelsImpl : OwnProductImpl, nn::AddsAlong {
  using OwnProductImpl::OwnProductImpl;
  int64_t LateDim(std::string_view) const override { return -2; }
};
struct AlongFirstImpl : OwnProductImpl, nn::AddsAlong {
  using OwnProductImpl::OwnProductImpl;
  int64_t LateDim(std::string_view) const override { return 1; }
};
MOONSHARD_MODULE(AlongLast);
MOONSHARD_MODULE(AlongChannels);
MOONSHARD_MODULE(AlongFirst);

template <class Inner>
struct EnclosingImpl : torch::nn::Module {
  explicit EnclosingImpl(Inner made) : down(register_module("down", std::move(made))) {}
  at::Tensor forward(const at::Tensor& x) { return down(x); }
  Inner down;
};

template <class Inner>
std::shared_ptr<EnclosingImpl<Inner>> Enclosed(Inner inner) {
  return std::make_shared<EnclosingImpl<Inner>>(std::move(inner));
}

Plan OwnPlan(const Layout& leaves) {
  Style down = RowwiseStyle(leaves);
  down.inputs = {Redistribution{Layout::Replicate(), Layout::Shard(1)}};
  return PlanOfRules("own", {{"down", down}});
}

TEST_CASE("a class of the user's declares the dim of what is added late") {
  const at::Tensor x = torch::arange(2 * 4 * 6, torch::kFloat64).cos().view({2, 4, 6});
  const at::Tensor expected = AlongChannels(6)(x).detach();
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    auto net = Enclosed(AlongChannels(6));
    const auto applied = ParallelizeModule(*net, OwnPlan(Layout::Replicate()), mesh);
    Expect(IsClose(net->forward(x).detach(), expected), "the output");
  });
}

TEST_CASE("what is added late has the sizes of what it is added to") {
  const at::Tensor x = torch::arange(2 * 4 * 5, torch::kFloat64).cos().view({2, 4, 5});
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    // 6 channels along 5 positions.
    auto last = Enclosed(AlongLast(6));
    const auto first = ParallelizeModule(*last, OwnPlan(Layout::Replicate()), mesh);
    std::string text = ErrorOf([&] { last->forward(x); });
    Expect(text.find("MS0309") != std::string::npos, text);
    Expect(text.find("a parameter of shape [6] along dim -1 of an output of shape [2, 6, 5]") != std::string::npos,
           text);
    // All 2 channels on a shard of one, which broadcasting would make two.
    auto one = Enclosed(AlongChannels(2));
    const auto second = ParallelizeModule(*one, OwnPlan(Layout::Shard(1)), mesh);
    text = ErrorOf([&] { one->forward(x); });
    Expect(text.find("a parameter of shape [2] along dim -2 of an output of shape [2, 1, 5]") != std::string::npos,
           text);
  });
}

TEST_CASE("a class that cannot add a parameter late is refused") {
  RunRanks("tp=2", [&](DeviceMesh& mesh) {
    auto first = Enclosed(AlongFirst(6));
    std::string text = ErrorOf([&] { ParallelizeModule(*first, OwnPlan(Layout::Replicate()), mesh); });
    Expect(text.find("adds parameter 'bias' along dim 1") != std::string::npos, text);
    Expect(!first->down->held, "nothing was asked");
    const auto circular = torch::nn::Conv1dOptions(4, 6, 3).padding(1).padding_mode(torch::kCircular);
    auto pads = Enclosed(nn::Conv1d(circular));
    const ApplyOptions unchecked = {.initial = InitialValues::kUnchecked};
    text = ErrorOf([&] { ParallelizeModule(*pads, OwnPlan(Layout::Replicate()), mesh, unchecked); });
    Expect(text.find("cannot leave parameter 'bias' out of its forward") != std::string::npos, text);
    Expect(text.find("along the dim that its LateDim returns") != std::string::npos, text);
  });
}

}  // namespace
}  // namespace moonshard::test
