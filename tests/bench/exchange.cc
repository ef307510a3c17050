// Forward and backward of one block of experts on two thread ranks of one thread each: with the exchange of tokens over
// ep=2, where each rank has one half of the tokens, and with experts that one rank of tp=2 owns in full
// (parallel = "owned"), where both have all tokens. Prints both times, their ratio and the bytes that a rank sends. Then
// the exchange with a shared expert: in front of which the tokens are started (ahead), and behind which they are sent (in
// turn). Ranks are threads of one machine, whose cores also move the bytes: what overlaps gains only where some are free.
//   bench_exchange [PAIRS]
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dsl/language/eval/load_plan.h"
#include "engine/models/moe.h"
#include "engine/runtime/apply/exchange_step.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/hook.h"
#include "tests/bench/timing.h"
#include "tests/support/ranks.h"

namespace moonshard::bench {
namespace {

struct Sizes {
  int64_t tokens;  // of the batch
  int64_t hidden;
  int64_t intermediate;
  int64_t experts;
  int64_t per_token;
  bool skewed = false;  // expert 0, on the first rank, gets every token, the others their share of the rest
};

// A model with one block at the path "mlp".
struct NetImpl : torch::nn::Module {
  explicit NetImpl(const MoeOptions& options) { mlp = register_module("mlp", SparseMoe(options)); }
  at::Tensor forward(const at::Tensor& hidden) { return mlp(hidden); }
  SparseMoe mlp = nullptr;
};
MOONSHARD_MODULE(Net);

// A block with a shared expert at the path "mlp".
struct SharedBlockImpl : torch::nn::Module {
  explicit SharedBlockImpl(const MoeOptions& options) : per_token(options.experts_per_token) {
    gate = register_module("gate",
                           nn::Linear(torch::nn::LinearOptions(options.expert.hidden, options.experts).bias(false)));
    experts = register_module("experts", Experts(options));
    shared_expert = register_module("shared_expert", GatedMlp(*options.shared));
  }
  at::Tensor forward(const at::Tensor& hidden) {
    const at::Tensor tokens = hidden.reshape({-1, hidden.size(-1)});
    const auto [weights, ids] = at::topk(at::softmax(gate(tokens), -1), per_token);
    if (ahead) StartExchange(*experts, {tokens, ids, weights});
    const at::Tensor shared = shared_expert(tokens);
    return (experts(tokens, ids, weights) + shared).view(hidden.sizes());
  }
  int64_t per_token;
  bool ahead = true;
  nn::Linear gate = nullptr;
  Experts experts = nullptr;
  GatedMlp shared_expert = nullptr;
};
MOONSHARD_MODULE(SharedBlock);

struct SharedNetImpl : torch::nn::Module {
  explicit SharedNetImpl(const MoeOptions& options) { mlp = register_module("mlp", SharedBlock(options)); }
  at::Tensor forward(const at::Tensor& hidden) { return mlp(hidden); }
  SharedBlock mlp = nullptr;
};
MOONSHARD_MODULE(SharedNet);

std::string PlanOf(const Sizes& sizes, const std::string& parallel, const std::string& more = "") {
  return R"(
local transformer <const>, experts <const> = require "transformer", require "experts"
local stream <const> = transformer.stream { sequence_parallel = false, loss_parallel = false, stable = false }
return plan {
  ddp { bucket = false },
  experts.block("mlp", stream, { parallel = ")" +
         parallel + "\", count = " + std::to_string(sizes.experts) +
         ", per_token = " + std::to_string(sizes.per_token) + ", features = " + std::to_string(sizes.hidden) + more +
         " }),\n}";
}

MoeOptions OptionsOf(const Sizes& sizes) {
  MoeOptions options;
  options.experts = sizes.experts;
  options.experts_per_token = sizes.per_token;
  options.normalize = true;
  options.expert.hidden = sizes.hidden;
  options.expert.intermediate = sizes.intermediate;
  options.shared = options.expert;
  options.shared->intermediate = sizes.per_token * sizes.intermediate;
  return options;
}

template <class Model>
Model WithValues(Model net) {
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_(at::sin(at::arange(parameter.numel()) * 12.9898 + ++phase).view(parameter.sizes()) * 0.05);
  }
  return net;
}

Net MakeNet(const Sizes& sizes) {
  MoeOptions options = OptionsOf(sizes);
  options.shared.reset();
  Net net = WithValues(Net(options));
  const torch::NoGradGuard no_grad;
  if (sizes.skewed) net->named_parameters()["mlp.gate.weight"][0].fill_(10);
  return net;
}

// The model under the plan, on the mesh.
template <class Model>
auto ApplyTo(Model net, const std::string& plan, const DeviceMesh& mesh) {
  PlanInputs inputs;
  inputs.mesh = mesh.shape();
  const LiveTree live = ReadLiveTree(*net).ValueOrThrow();
  inputs.model = live.tree.get();
  ApplyOptions options;
  options.initial = InitialValues::kUnchecked;
  return Parallelize(net, EvaluatePlan(plan, "experts.lua", inputs).ValueOrThrow(), mesh, options);
}

auto Apply(const Sizes& sizes, const DeviceMesh& mesh, const std::string& parallel) {
  return ApplyTo(MakeNet(sizes), PlanOf(sizes, parallel), mesh);
}

int64_t BytesOf(const AppliedPlan& applied) {
  int64_t bytes = 0;
  const CollectiveCounts counts = applied.counts();
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : {CollectiveKind::kAllToAll, CollectiveKind::kAllReduce}) {
      bytes += counts.of(direction, kind).bytes;
    }
  }
  return bytes;
}

void Bench(const Sizes& sizes, int pairs) {
  const auto second_store = c10::make_intrusive<c10d::HashStore>();
  test::RunRanks("ep=2", [&](DeviceMesh& exchanging) {
    MeshOptions on_cpu;
    on_cpu.device = DeviceChoice::kCpu;
    on_cpu.host = "127.0.0.1";
    const DeviceMesh owning =
        DeviceMesh::FromStore(second_store, exchanging.rank(), MeshShape::Parse("tp=2").ValueOrThrow(), on_cpu);
    auto exchanged = Apply(sizes, exchanging, "exchange");
    auto owned = Apply(sizes, owning, "owned");
    at::Tensor all = at::sin(at::arange(sizes.tokens * sizes.hidden, at::kFloat) * 12.9898)
                         .view({2, sizes.tokens / 2, sizes.hidden});
    if (sizes.skewed) all = all.abs();
    const at::Tensor whole = all.clone().requires_grad_();
    const at::Tensor own = all.narrow(0, exchanging.rank(), 1).clone().requires_grad_();
    const auto step = [](auto& model, const at::Tensor& x) {
      x.mutable_grad().reset();
      const at::Tensor y = model.forward(x);
      (y * y).sum().backward();
      return y.detach();
    };
    const at::Tensor difference = step(exchanged, own) - step(owned, whole).narrow(0, exchanging.rank(), 1);
    test::Expect(difference.abs().max().item<double>() < 1e-4, "the outputs differ");
    const at::Tensor gradients = own.grad() - whole.grad().narrow(0, exchanging.rank(), 1);
    test::Expect(gradients.abs().max().item<double>() < 1e-4, "the gradients differ");
    const int64_t sent = BytesOf(exchanged.applied());
    const int64_t reduced = BytesOf(owned.applied());
    const PairTimes times = TimePairs([&] { step(exchanged, own); }, [&] { step(owned, whole); }, pairs, 3);
    if (exchanging.rank() != 0) return;
    std::printf(
        "%lld tokens, hidden %lld, %lld of %lld experts of %lld%s: exchange %.2f ms, %lld bytes, "
        "owned %.2f ms, %lld bytes, ratio %.3f\n",
        static_cast<long long>(sizes.tokens), static_cast<long long>(sizes.hidden),
        static_cast<long long>(sizes.per_token), static_cast<long long>(sizes.experts),
        static_cast<long long>(sizes.intermediate), sizes.skewed ? ", skewed" : "", times.a_ms,
        static_cast<long long>(sent), times.b_ms, static_cast<long long>(reduced), times.ratio);
  });
}

void BenchAhead(const Sizes& sizes, int pairs) {
  test::RunRanks("ep=2", [&](DeviceMesh& mesh) {
    const std::string plan = PlanOf(sizes, "exchange", ", shared = \"shared_expert\"");
    auto model = ApplyTo(WithValues(SharedNet(OptionsOf(sizes))), plan, mesh);
    const at::Tensor x = at::sin(at::arange(sizes.tokens * sizes.hidden, at::kFloat) * 12.9898)
                             .view({2, sizes.tokens / 2, sizes.hidden})
                             .narrow(0, mesh.rank(), 1)
                             .clone()
                             .requires_grad_();
    const auto step = [&](bool ahead) {
      model.net()->mlp->ahead = ahead;
      x.mutable_grad().reset();
      const at::Tensor y = model.forward(x);
      (y * y).sum().backward();
      return std::pair(y.detach(), x.grad());
    };
    const auto with = step(true);
    const auto without = step(false);
    test::Expect(with.first.equal(without.first), "the outputs differ");
    // The terms of the gradient are added in another order.
    const at::Tensor difference = (with.second - without.second).abs().max() / without.second.abs().max();
    test::Expect(difference.item<double>() < 1e-5,
                 "the gradients differ by " + std::to_string(difference.item<double>()));
    const PairTimes times = TimePairs([&] { step(true); }, [&] { step(false); }, pairs, 3);
    if (mesh.rank() != 0) return;
    std::printf(
        "%lld tokens, hidden %lld, %lld of %lld experts of %lld and a shared one of %lld: ahead %.2f ms, in turn %.2f "
        "ms, ratio %.3f\n",
        static_cast<long long>(sizes.tokens), static_cast<long long>(sizes.hidden),
        static_cast<long long>(sizes.per_token), static_cast<long long>(sizes.experts),
        static_cast<long long>(sizes.intermediate), static_cast<long long>(sizes.per_token * sizes.intermediate),
        times.a_ms, times.b_ms, times.ratio);
  });
}

}  // namespace
}  // namespace moonshard::bench

int main(int argc, char** argv) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const moonshard::bench::Arguments arguments(argc, argv);
  const int pairs = arguments.Times(0, 30);
  using moonshard::bench::Sizes;
  const std::vector<Sizes> usual = {
      {1024, 256, 512, 8, 2}, {4096, 256, 512, 8, 2}, {1024, 256, 128, 64, 6}, {1024, 256, 512, 8, 2, true}};
  const std::vector<Sizes> small = {{16, 8, 8, 4, 2}, {16, 8, 8, 4, 2, true}};
  for (const Sizes& sizes : arguments.short_round() ? small : usual) moonshard::bench::Bench(sizes, pairs);
  const Sizes shared = arguments.short_round() ? small[0] : Sizes{2048, 512, 256, 8, 4};
  moonshard::bench::BenchAhead(shared, pairs);
  return 0;
}
