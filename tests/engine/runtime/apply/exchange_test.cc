// The call of experts with an exchange: arguments that are missing, exceptions, results that do not fit, and an exchange
// that starts before the call.
#include <catch2/catch.hpp>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include "engine/runtime/apply/exchange_step.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

// Two experts of one matrix each.
struct SwitchedExpertsImpl : torch::nn::Module {
  SwitchedExpertsImpl() { weight = register_parameter("weight", torch::ones({2, 4, 4}, torch::kDouble)); }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& ids, const at::Tensor& /*weights*/) {
    if (throws) throw std::runtime_error("planted in the experts");
    if (narrow) return tokens.narrow(1, 0, 2);
    at::Tensor sum = at::zeros_like(tokens);
    for (int64_t i = 0; i < weight.size(0); ++i) {
      const at::Tensor rows = ids.select(1, 0).eq(i).nonzero().squeeze(1);
      sum = sum.index_add(0, rows, at::mm(tokens.index_select(0, rows), weight[i]));
    }
    return sum;
  }
  at::Tensor weight;
  bool throws = false;
  bool narrow = false;
};
MOONSHARD_MODULE(SwitchedExperts);

struct SwitchedNetImpl : torch::nn::Module {
  SwitchedNetImpl() { experts = register_module("experts", SwitchedExperts()); }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& ids) {
    const at::Tensor weights = with_weights ? at::full(ids.sizes(), 2, tokens.options()) : at::Tensor();
    if (between) {
      StartExchange(*experts, {tokens, ids, weights});
      between();
    }
    return experts(spoil ? spoil(tokens) : tokens, ids, weights);
  }
  SwitchedExperts experts = nullptr;
  bool with_weights = true;
  std::function<void()> between;  // runs between the start of the exchange and the call
  std::function<at::Tensor(const at::Tensor&)> spoil;
};
MOONSHARD_MODULE(SwitchedNet);

Plan PlanOfSwitches() {
  Placement on_ep;
  on_ep[MeshAxis::kEp] = Layout::Shard(0);
  Rule rule;
  rule.pattern = "experts";
  rule.style.name = "experts";
  rule.style.params["weight"] = on_ep;
  rule.style.exchange = Exchange{.tokens = 0, .ids = 1, .weights = 2, .per_token = 1, .features = 4};
  Plan plan;
  plan.name = "switches";
  plan.rules.push_back(rule);
  plan.data_parallel.emplace().shards = false;
  return plan;
}

// Each rank's tokens are the number of the rank and one; the first is for its own expert, the others for the next one.
at::Tensor TokensOfRank(const DeviceMesh& mesh) { return at::full({3, 4}, mesh.rank() + 1, at::kDouble); }
at::Tensor IdsOfSwitch(const DeviceMesh& mesh) {
  return (at::tensor({0, 1, 1}, at::kLong) + mesh.rank()).remainder(2).view({3, 1});
}

void ExpectRightStep(ParallelModel<SwitchedNet>& model, const DeviceMesh& mesh) {
  for (const at::Tensor& parameter : model.parameters()) parameter.mutable_grad() = at::Tensor();
  const at::Tensor out = model.forward(TokensOfRank(mesh), IdsOfSwitch(mesh));
  ExpectEqual(out.detach(), at::full({3, 4}, 8.0 * static_cast<double>(mesh.rank() + 1), at::kDouble), "the sums");
  out.sum().backward();
  // Twice one of its own tokens and two of the other rank's, by a mean over two ranks.
  const double expected = mesh.rank() == 0 ? 1 * 1 + 2 * 2 : 1 * 2 + 2 * 1;
  ExpectEqual(model.parameters()[0].grad(), at::full({1, 4, 4}, expected, at::kDouble), "the gradient");
}

TEST_CASE("experts of an exchange that are called without weights are an error that names them") {
  const auto failures = RunRanksFailing("ep=2", [](DeviceMesh& mesh) {
    auto model = Parallelize(SwitchedNet(), PlanOfSwitches(), mesh);
    model.net()->with_weights = false;
    model.forward(TokensOfRank(mesh), IdsOfSwitch(mesh));
  });
  REQUIRE(failures.size() == 2);
  for (const RankFailure& failure : failures) {
    CHECK_THAT(failure.text,
               Catch::Contains("'experts' was called without tokens, the ids of their experts or the routing weights"));
  }
}

TEST_CASE("an exception in the experts of an exchange leaves the model usable") {
  RunRanks("ep=2", [](DeviceMesh& mesh) {
    auto model = Parallelize(SwitchedNet(), PlanOfSwitches(), mesh);
    ExpectRightStep(model, mesh);
    model.net()->experts->throws = true;
    std::string what;
    try {
      model.forward(TokensOfRank(mesh), IdsOfSwitch(mesh));
    } catch (const std::exception& error) {
      what = error.what();
    }
    Expect(what.find("planted in the experts") != std::string::npos, "got: " + what);
    model.net()->experts->throws = false;
    ExpectRightStep(model, mesh);
  });
}

int64_t SentSoFar(const ParallelModel<SwitchedNet>& model, Direction direction) {
  return model.applied().counts().of(direction, CollectiveKind::kAllToAll).count;
}

TEST_CASE("a block starts the exchange before the call of its experts, with the same collectives and numbers") {
  RunRanks("ep=2", [](DeviceMesh& mesh) {
    auto model = Parallelize(SwitchedNet(), PlanOfSwitches(), mesh);
    ExpectRightStep(model, mesh);
    const CollectiveCounts plain = model.applied().counts();
    model.applied().ClearCounts();
    int64_t before = -1;
    model.net()->between = [&] { before = SentSoFar(model, Direction::kForward); };
    ExpectRightStep(model, mesh);
    Expect(before == 2, "the counts and the rows");
    Expect(model.applied().counts() == plain, "the collectives of the step");
    // An alias of the argument, as an observer of the call may pass, is the same tensor.
    model.net()->spoil = [](const at::Tensor& tokens) { return tokens.view_as(tokens); };
    ExpectRightStep(model, mesh);
    const at::NoGradGuard no_grad;
    ExpectEqual(model.forward(TokensOfRank(mesh), IdsOfSwitch(mesh)),
                at::full({3, 4}, 8.0 * static_cast<double>(mesh.rank() + 1), at::kDouble),
                "the sums without gradients");
  });
}

TEST_CASE("an exchange does not start before a call that casts or recomputes its arguments") {
  Plan recomputed = PlanOfSwitches();
  recomputed.recompute.emplace_back().modules.push_back({"experts"});
  Plan cast = PlanOfSwitches();
  cast.kept_dtypes.push_back({{"experts"}, "float32"});
  cast.data_parallel->shards = true;
  for (const Plan& plan : {recomputed, cast}) {
    RunRanks("ep=2", [&](DeviceMesh& mesh) {
      auto model = Parallelize(SwitchedNet(), plan, mesh);
      int64_t before = -1;
      model.net()->between = [&] { before = SentSoFar(model, Direction::kForward); };
      ExpectRightStep(model, mesh);
      Expect(before == 0, "the call sends the tokens");
    });
  }
}

TEST_CASE("an exchange does not start before a call that redistributes its tokens") {
  Plan plan = PlanOfSwitches();
  plan.rules.front().style.inputs = {Redistribution{Layout::Replicate(), Layout::Shared()}};
  RunRanks("ep=2,tp=2", [&](DeviceMesh& mesh) {
    auto model = Parallelize(SwitchedNet(), plan, mesh);
    int64_t before = -1;
    model.net()->between = [&] { before = SentSoFar(model, Direction::kForward); };
    const int64_t rank = mesh.coordinate(MeshAxis::kEp);
    const at::Tensor ids = (at::tensor({0, 1, 1}, at::kLong) + rank).remainder(2).view({3, 1});
    ExpectEqual(model.forward(at::full({3, 4}, rank + 1, at::kDouble), ids).detach(),
                at::full({3, 4}, 8.0 * static_cast<double>(rank + 1), at::kDouble), "the sums");
    Expect(before == 0, "the call sends the tokens");
  });
}

// A root around the block, which a section recomputes.
struct AroundSwitchesImpl : torch::nn::Module {
  AroundSwitchesImpl() { net = register_module("net", SwitchedNet()); }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& ids) { return net(tokens, ids); }
  SwitchedNet net = nullptr;
};
MOONSHARD_MODULE(AroundSwitches);

// Without a section for gradients a recomputed module is no outermost call of its second run: there the call of the
// experts sends the tokens, which the block has sent in the first run.
TEST_CASE("an exchange that one run of a recomputed block starts and the other does not is that of no recomputation") {
  Plan plan = PlanOfSwitches();
  plan.rules.front().pattern = "net.experts";
  plan.data_parallel.reset();
  Plan kept = plan;
  Recomputed& section = kept.recompute.emplace_back();
  section.modules.push_back({"net"});
  section.keep_modules.push_back({"net.experts"});
  RunRanks("ep=2", [&](DeviceMesh& mesh) {
    ApplyOptions options;
    options.independent_replicas = true;
    std::vector<at::Tensor> outs;
    std::vector<at::Tensor> gradients;
    for (const Plan& one : {plan, kept}) {
      for (const bool ahead : {false, true}) {
        auto model = Parallelize(AroundSwitches(), one, mesh, options);
        if (ahead) model.net()->net->between = [] {};
        const at::Tensor tokens = TokensOfRank(mesh).requires_grad_();
        const at::Tensor out = model.forward(tokens, IdsOfSwitch(mesh));
        out.square().sum().backward();
        outs.push_back(out.detach());
        gradients.push_back(model.parameters()[0].grad());
        gradients.push_back(tokens.grad());
      }
    }
    for (size_t i = 1; i < outs.size(); ++i) {
      ExpectEqual(outs[i], outs[0], "the sums");
      ExpectEqual(gradients[2 * i], gradients[0], "the gradient of the experts");
      ExpectEqual(gradients[2 * i + 1], gradients[1], "the gradient of the tokens");
    }
  });
}

// Experts beside two projections of one argument, which tp redistributes once for both: calls of the module have a frame
// of their own.
struct FramedExpertsImpl : torch::nn::Module {
  FramedExpertsImpl() {
    for (const char* name : {"left", "right"}) {
      sides.emplace_back(register_module(name, nn::Linear(torch::nn::LinearOptions(4, 2).bias(false))));
      const at::NoGradGuard no_grad;
      sides.back()->weight.set_data(at::ones({2, 4}, at::kDouble));
    }
    experts = register_module("experts", SwitchedExperts());
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& ids, const at::Tensor& weights) {
    const at::Tensor sides_sum = sides[0](tokens) + sides[1](tokens);
    return experts(spoil ? tokens * 2 : tokens, ids, weights) + sides_sum.sum(1, /*keepdim=*/true);
  }
  std::vector<nn::Linear> sides;
  SwitchedExperts experts = nullptr;
  bool spoil = false;
};
MOONSHARD_MODULE(FramedExperts);

struct FramedNetImpl : torch::nn::Module {
  FramedNetImpl() { inner = register_module("inner", FramedExperts()); }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& ids) {
    const at::Tensor weights = at::full(ids.sizes(), 2, tokens.options());
    if (ahead) StartExchange(*inner->experts, {tokens, ids, weights});
    return inner(tokens, ids, weights);
  }
  FramedExperts inner = nullptr;
  bool ahead = true;
};
MOONSHARD_MODULE(FramedNet);

Plan PlanOfFrames() {
  Plan plan = PlanOfSwitches();
  plan.rules.front().pattern = "inner.experts";
  Rule sides;
  sides.pattern = "inner.{left,right}";
  sides.style.name = "sides";
  sides.style.params["weight"] = Placement(Layout::Shard(0));
  sides.style.inputs = {Redistribution{Layout::Replicate(), Layout::Shared()}};
  sides.style.outputs = {Redistribution{Layout::Shard(-1), Layout::Replicate()}};
  plan.rules.push_back(sides);
  return plan;
}

TEST_CASE("a module with a frame of its own between a block and its experts does not send the tokens twice") {
  RunRanks("ep=2,tp=2", [&](DeviceMesh& mesh) {
    auto model = Parallelize(FramedNet(), PlanOfFrames(), mesh);
    const int64_t rank = mesh.coordinate(MeshAxis::kEp);
    const at::Tensor ids = (at::tensor({0, 1, 1}, at::kLong) + rank).remainder(2).view({3, 1});
    const at::Tensor tokens = at::full({3, 4}, rank + 1, at::kDouble);
    std::vector<CollectiveCount> sent;
    for (const bool ahead : {false, true}) {
      model.net()->ahead = ahead;
      model.applied().ClearCounts();
      const at::Tensor out = model.forward(tokens, ids);
      ExpectEqual(out.detach(), at::full({3, 4}, 24.0 * static_cast<double>(rank + 1), at::kDouble), "the sums");
      out.sum().backward();
      sent.push_back(model.applied().counts().of(Direction::kForward, CollectiveKind::kAllToAll));
    }
    Expect(sent[0].count == 3, "the counts, the rows and the results");
    Expect(sent[1] == sent[0], "ahead " + std::to_string(sent[1].count) + " all-to-alls");
  });
}

TEST_CASE("a module between a block and its experts that changes the tokens after they were sent is an error") {
  const auto failures = RunRanksFailing("ep=2,tp=2", [&](DeviceMesh& mesh) {
    auto model = Parallelize(FramedNet(), PlanOfFrames(), mesh);
    model.net()->inner->spoil = true;
    model.forward(at::ones({3, 4}, at::kDouble), at::tensor({0, 1, 1}, at::kLong).view({3, 1}));
  });
  REQUIRE(failures.size() == 4);
  for (const RankFailure& failure : failures) {
    CHECK_THAT(failure.text, Catch::Contains("'inner.experts' was called with other tensors than StartExchange") &&
                                 Catch::Contains("StartExchange in the forward of this module"));
  }
}

TEST_CASE("an exception between the start of an exchange and the call leaves the model usable") {
  RunRanks("ep=2", [](DeviceMesh& mesh) {
    auto model = Parallelize(SwitchedNet(), PlanOfSwitches(), mesh);
    model.net()->between = [] { throw std::runtime_error("planted beside the experts"); };
    std::string what;
    try {
      model.forward(TokensOfRank(mesh), IdsOfSwitch(mesh));
    } catch (const std::exception& error) {
      what = error.what();
    }
    Expect(what.find("planted beside the experts") != std::string::npos, "got: " + what);
    model.net()->between = {};
    ExpectRightStep(model, mesh);
    model.net()->between = [] {};
    ExpectRightStep(model, mesh);
  });
}

TEST_CASE("experts that are called with other tensors than their exchange was started with are an error") {
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> others = {
      [](const at::Tensor& tokens) { return tokens * 2; },
      [](const at::Tensor& tokens) { return tokens.narrow(0, 0, 2); },  // in the same memory
  };
  for (const auto& other : others) {
    const auto failures = RunRanksFailing("ep=2", [&](DeviceMesh& mesh) {
      auto model = Parallelize(SwitchedNet(), PlanOfSwitches(), mesh);
      model.net()->between = [] {};
      model.net()->spoil = other;
      model.forward(TokensOfRank(mesh), IdsOfSwitch(mesh));
    });
    REQUIRE(failures.size() == 2);
    for (const RankFailure& failure : failures) {
      CHECK_THAT(failure.text, Catch::Contains("'experts' was called with other tensors than StartExchange"));
    }
  }
}

TEST_CASE("tokens that are written after they were sent are an error") {
  const auto failures = RunRanksFailing("ep=2", [&](DeviceMesh& mesh) {
    auto model = Parallelize(SwitchedNet(), PlanOfSwitches(), mesh);
    model.net()->between = [] {};
    model.net()->spoil = [](const at::Tensor& tokens) {
      const at::NoGradGuard no_grad;
      tokens.detach().mul_(2);
      return tokens;
    };
    model.forward(TokensOfRank(mesh), IdsOfSwitch(mesh));
  });
  REQUIRE(failures.size() == 2);
  for (const RankFailure& failure : failures) {
    CHECK_THAT(failure.text, Catch::Contains("the tokens of 'experts'") && Catch::Contains("after they were sent"));
  }
}

TEST_CASE("experts on one rank that return another shape are an error of this rank") {
  const auto failures = RunRanksFailing("ep=2", [](DeviceMesh& mesh) {
    auto model = Parallelize(SwitchedNet(), PlanOfSwitches(), mesh);
    model.net()->experts->narrow = mesh.rank() == 1;
    const at::Tensor out = model.forward(TokensOfRank(mesh), IdsOfSwitch(mesh));
    // The first token of rank 0 is for an expert of its own.
    ExpectEqual(out.detach().select(1, 0), at::tensor({8, 0, 0}, at::kDouble), "the sums on the other rank");
  });
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].rank == 1);
  CHECK_THAT(failures[0].text, Catch::Contains("a result of shape [3, 2] for 3 rows"));
}

}  // namespace
}  // namespace moonshard::test
