// TokenExchange against experts that run on all tokens in one place, on thread ranks: what each expert receives, the
// results and both gradients, for routings of many shapes.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/runtime/intercept/operator_scope.h"
#include "engine/runtime/redistribute/token_exchange.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::ExpectEqual;
using test::RankFailure;
using test::RunRanks;
using test::RunRanksFailing;

// The tokens of all ranks of ep, with their experts and weights, and the gradient of each token's result.
struct Routing {
  Exchange exchange;
  int64_t experts = 0;
  std::vector<at::Tensor> tokens, ids, weights, upstream;  // by rank
  at::Tensor matrices;                                     // [experts, features, features]
  std::string name;

  int64_t ranks() const { return static_cast<int64_t>(tokens.size()); }
  int64_t block() const { return (experts + ranks() - 1) / ranks(); }
  int64_t first(int64_t rank) const { return std::min(experts, rank * block()); }
  int64_t count(int64_t rank) const { return std::min(experts, (rank + 1) * block()) - first(rank); }
};

// Where the ids of a routing lie.
enum class Chosen : uint8_t { kAny, kOneExpert, kFirstRank, kLastRank, kAscending };

Routing MakeRouting(uint64_t seed, const std::vector<int64_t>& counts, int64_t experts, int64_t per_token,
                    Chosen chosen) {
  constexpr int64_t kWidth = 3;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto options = at::TensorOptions(at::kDouble);
  Routing out;
  out.exchange = {.tokens = 0, .ids = 1, .weights = 2, .per_token = per_token, .features = kWidth};
  out.experts = experts;
  out.name = std::to_string(experts) + " experts, " + std::to_string(per_token) + " of a token, ids of kind " +
             std::to_string(static_cast<int>(chosen)) + ", seed " + std::to_string(seed) + ", tokens";
  for (const int64_t count : counts) out.name += " " + std::to_string(count);
  const auto ranks = static_cast<int64_t>(counts.size());
  const int64_t block = (experts + ranks - 1) / ranks;
  for (const int64_t count : counts) {
    out.tokens.push_back(at::randn({count, kWidth}, generator, options));
    out.weights.push_back(at::rand({count, per_token}, generator, options));
    out.upstream.push_back(at::randn({count, kWidth}, generator, options));
    at::Tensor ids = at::randint(experts, {count, per_token}, generator, at::kLong);
    if (chosen == Chosen::kOneExpert) ids = at::full_like(ids, experts / 2);
    if (chosen == Chosen::kFirstRank) ids = ids.remainder(block);
    if (chosen == Chosen::kLastRank) ids = (experts - 1 - ids.remainder(block)).clamp_min(0);
    if (chosen == Chosen::kAscending) ids = at::arange(count * per_token).remainder(experts).view({count, per_token});
    out.ids.push_back(ids);
  }
  out.matrices = at::randn({experts, kWidth, kWidth}, generator, options);
  return out;
}

// Every kind of routing on a number of ranks: 1 to 7 experts, which the ranks do not always divide, up to a rank
// without one; ranks without tokens, and a step without any.
std::vector<Routing> RoutingsOn(int64_t ranks) {
  std::vector<Routing> out;
  std::mt19937 random(static_cast<unsigned>(ranks));
  const auto below = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<unsigned>(most)); };
  for (const int64_t experts : {1, 2, 3, 4, 5, 7}) {
    for (const int64_t per_token : {1, 2}) {
      for (const Chosen chosen :
           {Chosen::kAny, Chosen::kOneExpert, Chosen::kFirstRank, Chosen::kLastRank, Chosen::kAscending}) {
        std::vector<int64_t> counts;
        for (int64_t rank = 0; rank < ranks; ++rank) counts.push_back(below(3) == 0 ? 0 : below(9));
        out.push_back(MakeRouting(random(), counts, experts, per_token, chosen));
        out.back().exchange.listed = below(2) == 0 ? experts : 0;
      }
    }
  }
  out.push_back(MakeRouting(1, std::vector<int64_t>(static_cast<size_t>(ranks), 0), 4, 2, Chosen::kAny));
  out.push_back(MakeRouting(2, std::vector<int64_t>(static_cast<size_t>(ranks), 33), 4, 2, Chosen::kAny));
  return out;
}

// Whether each entry of the flattened ids of a rank is sent: the first ones up to the capacity of its expert.
std::vector<bool> SentOf(const Routing& routing, int64_t rank) {
  const at::Tensor flat = routing.ids[static_cast<size_t>(rank)].flatten();
  const double mean = static_cast<double>(flat.numel()) / static_cast<double>(routing.experts);
  const double most = routing.exchange.capacity > 0 ? std::ceil(routing.exchange.capacity * mean) : 1e9;
  std::vector<double> taken(static_cast<size_t>(routing.experts), 0);
  std::vector<bool> out;
  for (int64_t p = 0; p < flat.numel(); ++p) {
    out.push_back(++taken[static_cast<size_t>(flat[p].item<int64_t>())] <= most);
  }
  return out;
}

// What the experts of a rank receive: by rank, by expert, in the order of the tokens.
struct Received {
  at::Tensor rows;
  at::Tensor ids;   // global
  at::Tensor load;  // by expert of the rank
};

Received ReceivedOn(const Routing& routing, int64_t rank) {
  std::vector<at::Tensor> rows = {at::empty({0, routing.exchange.features}, at::kDouble)};
  std::vector<int64_t> ids;
  at::Tensor load = at::zeros({routing.count(rank)}, at::kLong);
  for (int64_t source = 0; source < routing.ranks(); ++source) {
    const auto s = static_cast<size_t>(source);
    const std::vector<bool> sent = SentOf(routing, source);
    const at::Tensor flat = routing.ids[s].flatten();
    for (int64_t i = 0; i < routing.count(rank); ++i) {
      const int64_t expert = routing.first(rank) + i;
      for (int64_t p = 0; p < flat.numel(); ++p) {
        if (flat[p].item<int64_t>() != expert || !sent[static_cast<size_t>(p)]) continue;
        rows.push_back(routing.tokens[s][p / routing.exchange.per_token].unsqueeze(0));
        ids.push_back(expert);
        load[i] += 1;
      }
    }
  }
  const auto count = static_cast<int64_t>(ids.size());
  return {at::cat(rows), at::tensor(ids, at::kLong).view({count, 1}), load};
}

// The experts `first`, `first` + 1, ..., which a model calls with tokens, ids and weights.
at::Tensor RunExperts(const at::Tensor& tokens, const at::Tensor& ids, const at::Tensor& weights,
                      const at::Tensor& matrices, int64_t first) {
  at::Tensor sum = at::zeros_like(tokens);
  for (int64_t i = 0; i < matrices.size(0); ++i) {
    const at::Tensor places = ids.eq(first + i).nonzero();
    const at::Tensor token = places.select(1, 0);
    const at::Tensor weight = weights.index({token, places.select(1, 1)}).unsqueeze(-1);
    sum = sum.index_add(0, token, at::tanh(at::mm(tokens.index_select(0, token), matrices[i])) * weight);
  }
  return sum;
}

at::Tensor TokenLeaf(const at::Tensor& value) { return value.detach().clone().set_requires_grad(true); }

// What one rank computes with all tokens and all experts.
struct Computed {
  std::vector<at::Tensor> results, of_tokens, of_weights;  // by rank; the latter two are gradients
  at::Tensor of_matrices;
};

Computed ComputeAlone(const Routing& routing) {
  Computed out;
  const at::Tensor matrices = TokenLeaf(routing.matrices);
  for (size_t rank = 0; rank < routing.tokens.size(); ++rank) {
    const at::Tensor tokens = TokenLeaf(routing.tokens[rank]);
    const at::Tensor weights = TokenLeaf(routing.weights[rank]);
    at::Tensor sent = at::zeros({weights.numel()}, at::kDouble);
    const std::vector<bool> of_rank = SentOf(routing, static_cast<int64_t>(rank));
    for (size_t p = 0; p < of_rank.size(); ++p) sent[static_cast<int64_t>(p)] = of_rank[p] ? 1.0 : 0.0;
    out.results.push_back(RunExperts(tokens, routing.ids[rank], weights * sent.view_as(weights), matrices, 0));
    torch::autograd::backward({out.results.back()}, {routing.upstream[rank]});
    out.of_tokens.push_back(tokens.grad());
    out.of_weights.push_back(weights.grad());
  }
  out.of_matrices = matrices.grad();
  return out;
}

void ExpectClose(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  Expect(got.defined() && got.sizes() == want.sizes(), what + ": another shape");
  if (want.numel() == 0) return;
  const double error = (got - want).abs().max().item<double>();
  Expect(error <= 1e-12, what + " differs by " + std::to_string(error));
}

// One step through an exchange.
void ExpectAsAlone(const Routing& routing, const Computed& alone, const std::shared_ptr<AxisGroup>& group) {
  const int64_t rank = group->rank();
  const auto r = static_cast<size_t>(rank);
  const TokenExchange exchange(group, routing.exchange, routing.experts, "experts");
  const at::Tensor tokens = TokenLeaf(routing.tokens[r]);
  const at::Tensor weights = TokenLeaf(routing.weights[r]);
  const at::Tensor matrices = TokenLeaf(routing.matrices.narrow(0, routing.first(rank), routing.count(rank)));

  at::Tensor rows = tokens;
  at::Tensor ids = routing.ids[r];
  at::Tensor ones = weights;
  const TokenExchange::Sent sent = exchange.Send(rows, ids, ones);
  const Received received = ReceivedOn(routing, rank);
  const int64_t shift = routing.exchange.listed > 0 ? 0 : routing.first(rank);
  ExpectEqual(rows.detach(), received.rows, routing.name + ": the received rows");
  ExpectEqual(ids, received.ids - shift, routing.name + ": the ids of the received rows");
  ExpectEqual(ones, at::ones({received.rows.size(0), 1}, at::kDouble), routing.name + ": their weights");
  ExpectEqual(sent.load, received.load, routing.name + ": the load");
  const std::vector<bool> of_rank = SentOf(routing, rank);
  Expect(sent.order.numel() == std::ranges::count(of_rank, true), routing.name + ": the number of sent rows");

  const at::Tensor results = exchange.Return(sent, RunExperts(rows, ids, ones, matrices, routing.first(rank) - shift));
  ExpectClose(results.detach(), alone.results[r], routing.name + ": the results");
  torch::autograd::backward({results}, {routing.upstream[r]});
  ExpectClose(tokens.grad(), alone.of_tokens[r], routing.name + ": the gradient of the tokens");
  ExpectClose(weights.grad(), alone.of_weights[r], routing.name + ": the gradient of the weights");
  if (routing.count(rank) == 0) return;
  ExpectClose(matrices.grad(), alone.of_matrices.narrow(0, routing.first(rank), routing.count(rank)),
              routing.name + ": the gradient of the experts");
}

void ExpectAllAsAlone(const std::vector<Routing>& routings) {
  std::vector<Computed> alone;
  for (const Routing& routing : routings) alone.push_back(ComputeAlone(routing));
  RunRanks("ep=" + std::to_string(routings.front().ranks()), [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
    for (size_t i = 0; i < routings.size(); ++i) ExpectAsAlone(routings[i], alone[i], group);
  });
}

TEST_CASE("an exchange of tokens computes what experts in one place compute") {
  for (const int64_t ranks : {2, 3, 4}) ExpectAllAsAlone(RoutingsOn(ranks));
}

TEST_CASE("a capacity drops the last tokens of an expert and no others") {
  std::vector<Routing> routings = RoutingsOn(3);
  size_t dropped = 0;
  for (size_t i = 0; i < routings.size(); ++i) {
    const double capacities[] = {0.5, 1, 1.25, 3};
    routings[i].exchange.capacity = capacities[i % 4];
    for (int64_t rank = 0; rank < 3; ++rank) {
      const std::vector<bool> sent = SentOf(routings[i], rank);
      dropped += static_cast<size_t>(std::ranges::count(sent, false));
    }
  }
  CHECK(dropped > 100);
  ExpectAllAsAlone(routings);
}

// Four tokens of rank 0 for the same of two experts: each takes 1.5 * 4 / 2 of them.
TEST_CASE("a dropped token has a sum of zero, and so has its gradient") {
  RunRanks("ep=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
    const Exchange keys = {
        .tokens = 0, .ids = 1, .weights = 2, .per_token = 1, .features = 2, .capacity = 1.5, .listed = 2};
    const TokenExchange exchange(group, keys, 2, "experts");
    const at::Tensor tokens = TokenLeaf(at::arange(1, 9, at::kDouble).view({4, 2}));
    const at::Tensor weights = TokenLeaf(at::full({4, 1}, 2, at::kDouble));
    at::Tensor rows = tokens;
    at::Tensor ids = at::ones({4, 1}, at::kLong);
    at::Tensor ones = weights;
    const TokenExchange::Sent sent = exchange.Send(rows, ids, ones);
    ExpectEqual(sent.load, at::full({1}, mesh.rank() * 6, at::kLong), "the load");
    const at::Tensor results = exchange.Return(sent, rows * 10);
    const at::Tensor kept = at::tensor({1.0, 1.0, 1.0, 0.0}).to(at::kDouble).view({4, 1});
    ExpectEqual(results.detach(), tokens.detach() * 20 * kept, "the results");
    results.sum().backward();
    ExpectEqual(tokens.grad(), at::full({4, 2}, 20, at::kDouble) * kept, "the gradient of the tokens");
    ExpectEqual(weights.grad(), tokens.detach().sum(1, true) * 10 * kept, "the gradient of the weights");
  });
}

TEST_CASE("an exchange runs the same collectives of the same bytes however tokens are routed") {
  RunRanks("ep=4", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
    for (const Chosen chosen : {Chosen::kAny, Chosen::kOneExpert, Chosen::kFirstRank}) {
      const Routing routing = MakeRouting(5, {6, 2, 0, 3}, 6, 2, chosen);
      group->ClearCounts();
      ExpectAsAlone(routing, ComputeAlone(routing), group);
      const auto r = static_cast<size_t>(mesh.rank());
      const int64_t rows = routing.tokens[r].size(0) * 2 * routing.exchange.features * 8;
      const CollectiveCount forward = group->counts().of(Direction::kForward, CollectiveKind::kAllToAll);
      const CollectiveCount backward = group->counts().of(Direction::kBackward, CollectiveKind::kAllToAll);
      // Four blocks of two experts, though the last one is empty.
      Expect(forward == CollectiveCount{3, 8 * 8 + 2 * rows}, "the collectives of the forward");
      Expect(backward == CollectiveCount{2, 2 * rows}, "the collectives of the backward");
    }
  });
}

// Runs `before` in front of each operator of this name.
class Before final : public OperatorHandler {
 public:
  Before(std::string name, std::function<void()> before) : name_(std::move(name)), before_(std::move(before)) {}
  void Handle(const c10::OperatorHandle& op, c10::Stack& /*stack*/, Next& next) override {
    if (op.schema().name() == name_) before_();
    next.Run();
  }

 private:
  std::string name_;
  std::function<void()> before_;
};

// One rank waits until the other one has come to a place.
class Place {
 public:
  void Reach() { reached_.set_value(); }
  void Await() {
    Expect(future_.wait_for(std::chrono::seconds(20)) == std::future_status::ready,
           "the other rank does not come to the place");
  }

 private:
  std::promise<void> reached_;
  std::shared_future<void> future_ = reached_.get_future().share();
};

// Rank 1 selects the rows that it sends, and gets the gradients of those that it received, only when rank 0 computes
// what is beside the exchange.
TEST_CASE("what a rank computes between Start and Wait waits for no rows, in the forward and in the backward") {
  Place forward;
  Place backward;
  RunRanks("ep=2", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp, {.mode = CheckOptions::Mode::kNever});
    const Exchange keys = {.tokens = 0, .ids = 1, .weights = 2, .per_token = 1, .features = 4};
    const TokenExchange exchange(group, keys, 2, "experts");
    const at::Tensor tokens = TokenLeaf(at::full({2, 4}, mesh.rank() + 1, at::kDouble));
    at::Tensor rows = tokens;
    at::Tensor ids = at::arange(2).view({2, 1});
    at::Tensor weights = at::ones({2, 1}, at::kDouble);
    TokenExchange::Started started;
    {
      Before selecting("aten::index_select", [&] { forward.Await(); });
      std::optional<OperatorScope> scope;
      if (mesh.rank() == 1) scope.emplace(selecting);
      started = exchange.Start(rows, ids, weights);
    }
    const at::Tensor beside = tokens * 5;
    if (mesh.rank() == 0) forward.Reach();
    beside.register_hook([&](const at::Tensor& gradient) {
      if (mesh.rank() == 0) backward.Reach();
      return gradient;
    });
    const TokenExchange::Sent sent = exchange.Wait(std::move(started), rows, ids, weights);
    ExpectEqual(rows.detach(), at::tensor({1.0, 2.0}, at::kDouble).view({2, 1}).expand({2, 4}), "the rows");
    rows.register_hook([&](const at::Tensor& gradient) {
      if (mesh.rank() == 1) backward.Await();
      return gradient;
    });
    const at::Tensor results = exchange.Return(sent, rows * 3) + beside;
    ExpectEqual(results.detach(), tokens.detach() * 8, "the results");
    results.sum().backward();
    ExpectEqual(tokens.grad(), at::full({2, 4}, 8, at::kDouble), "the gradient of the tokens");
  });
}

TEST_CASE("a started exchange that no call waits for leaves the group usable") {
  const Routing routing = MakeRouting(3, {4, 5}, 4, 2, Chosen::kAny);
  const Computed alone = ComputeAlone(routing);
  RunRanks("ep=2", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
    const auto r = static_cast<size_t>(mesh.rank());
    const TokenExchange exchange(group, routing.exchange, routing.experts, "experts");
    exchange.Start(routing.tokens[r], routing.ids[r], routing.weights[r]);
    ExpectAsAlone(routing, alone, group);
  });
}

TEST_CASE("an exchange that was started with gradients and waited for without records none") {
  RunRanks("ep=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
    const Exchange keys = {.tokens = 0, .ids = 1, .weights = 2, .per_token = 1, .features = 4};
    const TokenExchange exchange(group, keys, 2, "experts");
    at::Tensor rows = TokenLeaf(at::ones({2, 4}, at::kDouble));
    at::Tensor ids = at::arange(2).view({2, 1});
    at::Tensor weights = at::ones({2, 1}, at::kDouble);
    TokenExchange::Started started = exchange.Start(rows, ids, weights);
    const at::NoGradGuard no_grad;
    const TokenExchange::Sent sent = exchange.Wait(std::move(started), rows, ids, weights);
    Expect(!rows.requires_grad() && sent.node == nullptr, "no history");
    ExpectEqual(exchange.Return(sent, rows), at::ones({2, 4}, at::kDouble), "the results");
  });
}

// Twice through one graph: each backward sends the gradients anew.
TEST_CASE("a backward through an exchange can be repeated") {
  RunRanks("ep=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
    const Exchange keys = {.tokens = 0, .ids = 1, .weights = 2, .per_token = 1, .features = 4};
    const TokenExchange exchange(group, keys, 2, "experts");
    const at::Tensor tokens = TokenLeaf(at::ones({2, 4}, at::kDouble));
    at::Tensor rows = tokens;
    at::Tensor ids = at::arange(2).view({2, 1});
    at::Tensor weights = at::ones({2, 1}, at::kDouble);
    const TokenExchange::Sent sent = exchange.Send(rows, ids, weights);
    const at::Tensor sum = exchange.Return(sent, rows * 3).sum();
    sum.backward({}, /*retain_graph=*/true);
    sum.backward();
    ExpectEqual(tokens.grad(), at::full({2, 4}, 6, at::kDouble), "the sum of both gradients");
    Expect(group->counts().of(Direction::kBackward, CollectiveKind::kAllToAll).count == 4, "two of each backward");
  });
}

// On rank 0 the results have no path to the rows, on rank 1 the loss has none to the results.
TEST_CASE("ranks without a path through their experts take part in the backward") {
  const Routing routing = MakeRouting(7, {4, 5}, 4, 2, Chosen::kAscending);
  RunRanks("ep=2", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
    const auto r = static_cast<size_t>(mesh.rank());
    const TokenExchange exchange(group, routing.exchange, routing.experts, "experts");
    const at::Tensor tokens = TokenLeaf(routing.tokens[r]);
    at::Tensor rows = tokens;
    at::Tensor ids = routing.ids[r];
    at::Tensor weights = routing.weights[r];
    const TokenExchange::Sent sent = exchange.Send(rows, ids, weights);
    const at::Tensor of_experts = mesh.rank() == 0 ? at::ones_like(rows) : rows * 3;
    const at::Tensor results = exchange.Return(sent, of_experts);
    (mesh.rank() == 0 ? results.sum() : (results * 0).sum()).backward();
    Expect(group->counts().of(Direction::kBackward, CollectiveKind::kAllToAll).count == 2, "both collectives");
    // Experts 2 and 3 are on rank 1, and the gradient there is three times the weight.
    const at::Tensor through = routing.weights[r] * routing.ids[r].ge(2) * (mesh.rank() == 0 ? 3 : 0);
    ExpectClose(tokens.grad(), through.sum(1, true).expand_as(tokens), "the gradient of the tokens");
  });
}

TEST_CASE("tokens that need no gradient, and a forward without gradients") {
  const Routing routing = MakeRouting(8, {3, 0}, 2, 1, Chosen::kAscending);
  const Computed alone = ComputeAlone(routing);
  RunRanks("ep=2", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
    const auto r = static_cast<size_t>(mesh.rank());
    const TokenExchange exchange(group, routing.exchange, routing.experts, "experts");
    for (const bool gradients : {true, false}) {
      const at::AutoGradMode mode(gradients);
      const at::Tensor matrix = TokenLeaf(routing.matrices[mesh.rank()].unsqueeze(0));
      at::Tensor rows = routing.tokens[r];
      at::Tensor ids = routing.ids[r];
      at::Tensor weights = routing.weights[r];
      const TokenExchange::Sent sent = exchange.Send(rows, ids, weights);
      const at::Tensor results = exchange.Return(sent, RunExperts(rows, ids, weights, matrix, 0));
      ExpectClose(results.detach(), alone.results[r], "the results");
      Expect(results.requires_grad() == gradients && (sent.node != nullptr) == gradients,
             "a history, as the mode says");
      if (!gradients) continue;
      torch::autograd::backward({results}, {routing.upstream[r]});
      ExpectClose(matrix.grad(), alone.of_matrices[mesh.rank()].unsqueeze(0), "the gradient of the expert");
    }
  });
}

// An expert that multiplies by its number, so that no result depends on a kernel's order.
TEST_CASE("tokens in bfloat16 with weights in float32, and ids in int32") {
  const Routing routing = MakeRouting(9, {5, 0, 4}, 4, 2, Chosen::kAny);
  RunRanks("ep=3", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
    const auto r = static_cast<size_t>(mesh.rank());
    Exchange keys = routing.exchange;
    keys.listed = 4;
    const TokenExchange exchange(group, keys, 4, "experts");
    const at::Tensor given = TokenLeaf(routing.tokens[r].to(at::kBFloat16));
    const at::Tensor given_weights = TokenLeaf(routing.weights[r].to(at::kFloat));
    at::Tensor rows = given;
    at::Tensor ids = routing.ids[r].to(at::kInt);
    at::Tensor weights = given_weights;
    const TokenExchange::Sent sent = exchange.Send(rows, ids, weights);
    Expect(rows.scalar_type() == at::kBFloat16 && ids.scalar_type() == at::kInt && weights.scalar_type() == at::kFloat,
           "the dtypes of the arguments");
    const at::Tensor results = exchange.Return(sent, rows * (ids + 1).to(at::kBFloat16));
    const at::Tensor each = given.unsqueeze(1) * (routing.ids[r] + 1).to(at::kBFloat16).unsqueeze(-1);
    const at::Tensor want = (each * given_weights.unsqueeze(-1)).sum(1).to(at::kBFloat16);
    ExpectEqual(results.detach(), want.detach(), "the results");
    results.sum().backward();
    Expect(given.grad().scalar_type() == at::kBFloat16 && given_weights.grad().scalar_type() == at::kFloat,
           "the dtypes of the gradients");
    ExpectEqual(given_weights.grad(), each.detach().to(at::kFloat).sum(2), "the gradient of the weights");
  });
}

// What the ranks say when the arguments of rank 1 do not fit.
std::vector<RankFailure> FailuresOf(const std::function<void(at::Tensor&, at::Tensor&, at::Tensor&)>& spoil) {
  return RunRanksFailing("ep=3", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
    const Exchange keys = {.tokens = 0, .ids = 1, .weights = 2, .per_token = 2, .features = 4};
    const TokenExchange exchange(group, keys, 5, "layer.experts");
    at::Tensor tokens = at::ones({3, 4});
    at::Tensor ids = at::ones({3, 2}, at::kLong);
    at::Tensor weights = at::ones({3, 2});
    if (mesh.rank() == 1) spoil(tokens, ids, weights);
    exchange.Send(tokens, ids, weights);
  });
}

TEST_CASE("arguments that do not fit on one rank are an error on every rank") {
  struct Row {
    std::string says;
    std::function<void(at::Tensor&, at::Tensor&, at::Tensor&)> spoil;
  };
  using at::Tensor;
  const std::vector<Row> rows = {
      {"ids from 1 to 5", [](Tensor&, Tensor& ids, Tensor&) { ids[2][1] = 5; }},
      {"ids from -1 to 1", [](Tensor&, Tensor& ids, Tensor&) { ids[0][0] = -1; }},
      {"tokens [3, 5]",
       [](Tensor& tokens, Tensor&, Tensor&) {
         tokens = at::ones({3, 5});
       }},
      {"tokens [1, 3, 4]", [](Tensor& tokens, Tensor&, Tensor&) { tokens = tokens.unsqueeze(0); }},
      {"tokens integer [3, 4]", [](Tensor& tokens, Tensor&, Tensor&) { tokens = tokens.to(at::kLong); }},
      {"ids integer [3, 1]", [](Tensor&, Tensor& ids, Tensor&) { ids = ids.narrow(1, 0, 1); }},
      {"ids integer [2, 2]", [](Tensor&, Tensor& ids, Tensor&) { ids = ids.narrow(0, 0, 2); }},
      {"ids [3, 2]", [](Tensor&, Tensor& ids, Tensor&) { ids = ids.to(at::kFloat); }},
      {"weights [3]", [](Tensor&, Tensor&, Tensor& weights) { weights = weights.select(1, 0); }},
      {"weights integer [3, 2]", [](Tensor&, Tensor&, Tensor& weights) { weights = weights.to(at::kLong); }},
  };
  for (const Row& row : rows) {
    INFO(row.says);
    const std::vector<RankFailure> failures = FailuresOf(row.spoil);
    REQUIRE(failures.size() == 3);
    for (const RankFailure& failure : failures) {
      INFO(failure.text);
      CHECK_THAT(failure.text, Catch::Contains("the tokens of 'layer.experts' cannot be sent to their experts"));
      CHECK_THAT(failure.text,
                 Catch::Contains(failure.rank == 1 ? row.says : "other arguments on rank 1 of ep[0,1,2]"));
      CHECK_THAT(failure.text, Catch::Contains("tokens [N, 4], integer ids [N, 2] from 0 to 4"));
    }
  }
}

TEST_CASE("a result of another shape is an error of its rank, for which the others do not wait") {
  const std::vector<std::pair<std::string, std::function<at::Tensor(const at::Tensor&)>>> results = {
      {"a result of shape [2, 4] for 3 rows", [](const at::Tensor& rows) { return rows.narrow(0, 0, 2); }},
      {"a result of shape [3, 5] for 3 rows",
       [](const at::Tensor&) {
         return at::ones({3, 5});
       }},
      {"a result of shape [12] for 3 rows", [](const at::Tensor& rows) { return rows.flatten(); }},
      {"a result without a tensor for 3 rows", [](const at::Tensor&) { return at::Tensor(); }},
  };
  for (const auto& row : results) {
    INFO(row.first);
    const std::vector<RankFailure> failures = RunRanksFailing("ep=2", [&](DeviceMesh& mesh) {
      const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
      const Exchange keys = {.tokens = 0, .ids = 1, .weights = 2, .per_token = 1, .features = 4};
      const TokenExchange exchange(group, keys, 2, "experts");
      at::Tensor rows = at::ones({3, 4});
      at::Tensor ids = at::full({3, 1}, 1 - mesh.rank(), at::kLong);  // of an expert on the other rank
      at::Tensor weights = at::ones({3, 1});
      const TokenExchange::Sent sent = exchange.Send(rows, ids, weights);
      const at::Tensor got = exchange.Return(sent, mesh.rank() == 1 ? row.second(rows) : rows);
      // The experts of rank 1 returned nothing that could be used.
      ExpectEqual(got, at::zeros({3, 4}), "the results on the other rank");
    });
    REQUIRE(failures.size() == 1);
    CHECK(failures[0].rank == 1);
    CHECK_THAT(failures[0].text, Catch::Contains(row.first));
  }
}

// Of no rows a module may return anything; what the ranks send each other has the dtype of the tokens all the same.
TEST_CASE("a rank without rows may return no tensor") {
  const std::vector<at::Tensor> nothing = {at::Tensor(), at::empty({0}), at::empty({0, 7}, at::kDouble)};
  for (const at::Tensor& of_no_rows : nothing) {
    RunRanks("ep=2", [&](DeviceMesh& mesh) {
      const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
      const Exchange keys = {.tokens = 0, .ids = 1, .weights = 2, .per_token = 1, .features = 4};
      const TokenExchange exchange(group, keys, 2, "experts");
      const at::Tensor tokens = TokenLeaf(at::full({3, 4}, 2.0, at::kBFloat16));
      at::Tensor rows = tokens;
      at::Tensor ids = at::zeros({3, 1}, at::kLong);  // all on rank 0
      at::Tensor weights = at::ones({3, 1}, at::kFloat);
      const TokenExchange::Sent sent = exchange.Send(rows, ids, weights);
      const at::Tensor results = exchange.Return(sent, mesh.rank() == 0 ? rows * 5 : of_no_rows);
      Expect(results.scalar_type() == at::kBFloat16, "the dtype of the results");
      ExpectEqual(results.detach(), at::full({3, 4}, 10.0, at::kBFloat16), "the results");
      results.sum().backward();
      ExpectEqual(tokens.grad(), at::full({3, 4}, 5.0, at::kBFloat16), "the gradient of the tokens");
    });
  }
}

TEST_CASE("an exchange cannot be differentiated twice, on any rank") {
  const std::vector<RankFailure> failures = RunRanksFailing("ep=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kEp);
    const Exchange keys = {.tokens = 0, .ids = 1, .weights = 2, .per_token = 1, .features = 4};
    const TokenExchange exchange(group, keys, 2, "layer.experts");
    const at::Tensor tokens = TokenLeaf(at::ones({2, 4}));
    at::Tensor rows = tokens;
    at::Tensor ids = at::arange(2).view({2, 1});
    at::Tensor weights = at::ones({2, 1});
    const TokenExchange::Sent sent = exchange.Send(rows, ids, weights);
    const at::Tensor results = exchange.Return(sent, rows * rows);
    torch::autograd::grad({results.square().sum()}, {tokens}, {}, true, /*create_graph=*/true);
  });
  REQUIRE(failures.size() == 2);
  for (const RankFailure& failure : failures) {
    CHECK_THAT(failure.text, Catch::Contains("an exchange of tokens cannot be differentiated twice") &&
                                 Catch::Contains("layer.experts"));
  }
}

}  // namespace
}  // namespace moonshard
