// Proofs of steps that call several models, each with a plan of its own: a generator and a discriminator.
#include <catch2/catch.hpp>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "engine/analysis/prove/type_scope.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/ranks.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

// Up to 8 features and down again; `between` is what it does with the 8.
struct PairImpl : torch::nn::Module {
  using Between = std::function<at::Tensor(const at::Tensor& h)>;
  PairImpl(int64_t in, int64_t out, Between f) : between(std::move(f)) {
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(in, 8)));
    down = register_module("down", nn::Linear(torch::nn::LinearOptions(8, out)));
  }
  at::Tensor forward(const at::Tensor& x) { return down(between(up(x))); }
  Between between;
  nn::Linear up = nullptr;
  nn::Linear down = nullptr;
};
MOONSHARD_MODULE(Pair);

at::Tensor Tanh(const at::Tensor& h) { return h.tanh(); }

struct Adversaries {
  PairImpl::Between generator = Tanh;
  PairImpl::Between discriminator = Tanh;
  Plan plan = PlanOfRules("p", {{"up", ColwiseStyle()}, {"down", RowwiseStyle()}});
  bool mean = true;  // the losses, over the rows
};

// A step of a GAN: the discriminator learns to tell rows apart, then the generator from what it answers.
Proof ProofOfStep(const Adversaries& of, const std::string& mesh, int64_t rank = 0) {
  const auto step = [&](const DeviceMesh& at, const TypeOptions& options) {
    torch::manual_seed(3);
    Pair generator(2, 6, of.generator);
    Pair discriminator(6, 1, of.discriminator);
    generator->to(at::kDouble);
    discriminator->to(at::kDouble);
    const auto makes = ParallelizeModule(*generator, of.plan, at);
    const auto tells = ParallelizeModule(*discriminator, of.plan, at);
    TypeScope scope({{"generator", *makes}, {"discriminator", *tells}}, options);
    const at::Tensor real = torch::rand({4, 6}, at::kDouble);
    const at::Tensor noise = torch::rand({4, 2}, at::kDouble);
    scope.Input(real);
    scope.Input(noise);
    const auto reduced = [&](const at::Tensor& rows) { return of.mean ? rows.mean() : rows.sum(); };
    try {
      const at::Tensor made = generator(noise);
      const at::Tensor told = reduced(at::softplus(-discriminator(real)) + at::softplus(discriminator(made.detach())));
      scope.Loss(told);
      told.backward();
      const at::Tensor fooled = reduced(at::softplus(-discriminator(made)));
      scope.Loss(fooled);
      fooled.backward();
    } catch (const c10::Error& error) {
      scope.Stopped(error.what_without_backtrace());
    }
    return scope.Finish();
  };
  return ProveAtTwoSizes(MeshShape::Parse(mesh).ValueOrThrow(), step, {}, rank);
}

Adversaries OnDataRanks(bool mean) {
  Adversaries out;
  out.plan.data_parallel.emplace().shards = false;
  out.plan.data_parallel->mean = mean;
  return out;
}

}  // namespace

TEST_CASE("a step of two models with a plan each is proven") {
  const std::string mesh = GENERATE("tp=2", "tp=4", "dp=2,tp=2");
  CAPTURE(mesh);
  for (const int64_t rank : {0, 1}) {
    const Proof proof = ProofOfStep(mesh == "dp=2,tp=2" ? OnDataRanks(true) : Adversaries(), mesh, rank);
    INFO(ToText(proof));
    CHECK(proof.holds());
    CHECK(proof.scope.modules == 6);
  }
}

TEST_CASE("what is wrong in one of two models is found in it") {
  Adversaries wrong;
  wrong.discriminator = [](const at::Tensor& h) { return h.tanh() / static_cast<double>(h.size(-1)); };
  const Proof divided = ProofOfStep(wrong, "tp=2");
  INFO(ToText(divided));
  REQUIRE(divided.faults.size() == 1);
  CHECK(divided.faults[0].path == "discriminator");
  CHECK(divided.faults[0].kind == TypeFault::Kind::kSize);

  wrong = Adversaries();
  wrong.generator = [](const at::Tensor& h) { return h.softmax(-1); };
  const Proof normed = ProofOfStep(wrong, "tp=2");
  INFO(ToText(normed));
  REQUIRE_FALSE(normed.faults.empty());
  CHECK(normed.faults[0].path == "generator");
}

TEST_CASE("the losses of two models are compared with how their gradients are reduced") {
  Adversaries sums = OnDataRanks(true);
  sums.mean = false;
  const Proof proof = ProofOfStep(sums, "dp=2,tp=2");
  INFO(ToText(proof));
  REQUIRE_FALSE(proof.faults.empty());
  CHECK(proof.faults[0].kind == TypeFault::Kind::kScale);
}

TEST_CASE("models that cannot be proven together are refused") {
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("dp=2,tp=2").ValueOrThrow(), 0);
  const DeviceMesh other = DeviceMesh::Recording(MeshShape::Parse("tp=2").ValueOrThrow(), 0);
  Pair first(2, 6, Tanh);
  Pair second(6, 1, Tanh);
  Pair third(6, 1, Tanh);
  const auto a = ParallelizeModule(*first, OnDataRanks(true).plan, mesh);
  const auto b = ParallelizeModule(*second, OnDataRanks(false).plan, mesh);
  const auto c = ParallelizeModule(*third, Adversaries().plan, other);
  const auto refusal = [&](AppliedPlan& with) -> std::string {
    try {
      const TypeScope scope({{"one", *a}, {"two", with}});
    } catch (const PlanError& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(refusal(*b), Catch::Contains("the models 'one' and 'two'") &&
                              Catch::Contains("reduce gradients over the data-parallel axes in different ways"));
  CHECK_THAT(refusal(*c), Catch::Contains("are on different meshes"));
}

}  // namespace moonshard::test
