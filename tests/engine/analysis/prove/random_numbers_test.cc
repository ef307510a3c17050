// Proofs of forwards that draw random numbers: for shards each rank must draw other ones, for what all ranks have the
// same ones. Numbers of two runs cannot be compared here; that the streams are so is shown on ranks that are processes
// (tests/engine/runtime/apply/dropout_test.cc).
#include <catch2/catch.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>

#include "engine/analysis/prove/type_scope.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/ranks.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

struct DrawingImpl;
using DrawingForward = std::function<at::Tensor(DrawingImpl& net, const at::Tensor& x)>;

// x [2, 3, 4]; up to 8 features and back.
struct DrawingImpl : torch::nn::Module {
  explicit DrawingImpl(DrawingForward f) : program(std::move(f)) {
    up = register_module("up", nn::Linear(torch::nn::LinearOptions(4, 8)));
    down = register_module("down", nn::Linear(torch::nn::LinearOptions(8, 4).bias(false)));
  }
  at::Tensor forward(const at::Tensor& x) { return program(*this, x); }
  DrawingForward program;
  nn::Linear up = nullptr;
  nn::Linear down = nullptr;
};
MOONSHARD_MODULE(Drawing);

Proof ProofOfDrawing(const DrawingForward& program, const std::string& mesh, const Plan& plan, int64_t rank,
                     bool intercepted = true) {
  const auto step = [&](const DeviceMesh& at, const TypeOptions& options) {
    torch::manual_seed(3);
    Drawing called(program);
    const std::shared_ptr<DrawingImpl> net = intercepted ? called.ptr() : std::make_shared<DrawingImpl>(program);
    net->to(at::kDouble);
    const auto applied = ParallelizeModule(*net, plan, at);
    TypeScope scope(*applied, options);
    const at::Tensor x = torch::rand({2, 3, 4}, at::kDouble);
    scope.Input(x);
    try {
      const at::Tensor loss = (intercepted ? called(x) : net->forward(x)).pow(2).mean();
      scope.Loss(loss);
      loss.backward();
    } catch (const c10::Error& error) {
      scope.Stopped(error.what_without_backtrace());
    }
    return scope.Finish();
  };
  return ProveAtTwoSizes(MeshShape::Parse(mesh).ValueOrThrow(), step, {}, rank);
}

struct DrawingCase {
  std::string name;
  DrawingForward forward;
  std::string unproven;  // a part of what is said of one that is not proven; "": holds
};

std::vector<DrawingCase> DrawingCases() {
  using Net = DrawingImpl;
  const std::string own = "each rank of tp draws other random numbers for values that all ranks have";
  const std::string common = "the ranks of tp draw the same random numbers for their shards";
  return {
      {"dropout of shards",
       [](Net& n, const at::Tensor& x) { return n.down(at::dropout(at::relu(n.up(x)), 0.5, true)); }, ""},
      {"dropout behind the reduction",
       [](Net& n, const at::Tensor& x) { return x + at::dropout(n.down(n.up(x)), 0.5, true); }, ""},
      {"both, and dropout of the input",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor seen = at::dropout(x, 0.1, true);
         return seen + at::dropout(n.down(at::dropout(n.up(seen), 0.2, true)), 0.3, true);
       },
       ""},
      {"alpha dropout of shards",
       [](Net& n, const at::Tensor& x) { return n.down(at::alpha_dropout(at::selu(n.up(x)), 0.3, true)); }, ""},
      {"normal noise like shards",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         return n.down(h + 0.1 * at::randn_like(h));
       },
       ""},
      {"uniform noise in memory like shards",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         return n.down(h * at::empty_like(h).uniform_(0.5, 1.5));
       },
       ""},
      {"bits by the values of shards",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         return n.down(h * at::bernoulli(at::sigmoid(h.detach())));
       },
       ""},
      {"bits by a tensor of probabilities, in memory like shards",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         return n.down(h * at::empty_like(h).bernoulli_(at::full({}, 0.25, h.options())));
       },
       ""},
      {"dropout of features at once, none of which is a shard",
       [](Net& n, const at::Tensor& x) { return n.down(at::feature_dropout(n.up(x), 0.5, true)); }, own},
      {"dropout of features at once, which are the shard",
       [](Net& n, const at::Tensor& x) {
         return n.down(at::feature_dropout(n.up(x).transpose(1, 2), 0.5, true).transpose(1, 2));
       },
       ""},
      {"dropout of the input behind a module of shards",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         const at::Tensor seen = at::dropout(x, 0.5, true);
         return seen + n.down(h);
       },
       own},
      {"numbers of full sizes behind a module of shards",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         const at::Tensor noise = at::randn({2, 3, 4}, x.options());
         return noise + n.down(h);
       },
       own},
      {"dropout of shards behind the reduction",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         const at::Tensor y = n.down(h);
         return y + n.down(at::dropout(h, 0.5, true));
       },
       common},
      {"numbers of local sizes",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         return n.down(h * at::rand({2, 3, h.size(-1)}, x.options()));
       },
       "rand"},
      {"a generator of the program, for shards",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         return n.down(h * at::empty_like(h).bernoulli_(0.5, at::make_generator<at::CPUGeneratorImpl>(7)));
       },
       common},
      {"a generator of the program, for full values behind a module of shards",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         const at::Tensor noise = at::empty_like(x).bernoulli_(0.5, at::make_generator<at::CPUGeneratorImpl>(7));
         return x * noise + n.down(h);
       },
       ""},
      {"bits by the values of shards, behind the reduction",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         const at::Tensor y = n.down(h);
         return y + n.down(h * at::bernoulli(at::sigmoid(h.detach())));
       },
       common},
      {"the default generator, given as an argument, for full values behind a module of shards",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         const at::Tensor mask = at::empty_like(x).bernoulli_(0.5, at::detail::getDefaultCPUGenerator());
         return x * mask + n.down(h);
       },
       own},
      {"the default generator, given as an argument, for shards",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         return n.down(h * at::empty_like(h).bernoulli_(0.5, at::detail::getDefaultCPUGenerator()));
       },
       ""},
      {"a seed in the forward",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         torch::manual_seed(5);
         return n.down(at::dropout(h, 0.5, true));
       },
       "seeds a generator"},
      {"a number that the host draws",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = at::dropout(n.up(x), 0.5, true);
         at::Generator generator = at::detail::getDefaultCPUGenerator();
         at::check_generator<at::CPUGeneratorImpl>(generator)->random();
         return at::dropout(n.down(h), 0.5, true);
       },
       "draws from it"},
      {"a number that the host draws last",
       [](Net& n, const at::Tensor& x) {
         at::Tensor y = n.down(at::dropout(n.up(x), 0.5, true));
         at::Generator generator = at::detail::getDefaultCPUGenerator();
         at::check_generator<at::CPUGeneratorImpl>(generator)->random();
         return y;
       },
       "draws from it"},
      {"as many numbers as values of a shard choose",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         const at::Tensor y = n.down(h);
         return y * at::rand({1 + at::nonzero(h.detach() > 0).size(0)}, x.options()).mean();
       },
       "behind a choice by the values of a shard"},
      {"noise if values of a shard choose many",
       [](Net& n, const at::Tensor& x) {
         at::Tensor h = n.up(x);
         if (at::nonzero(h.detach() > -9).size(0) > 8) h = h + at::randn_like(h);
         return n.down(h);
       },
       "behind a choice by the values of a shard"},
      {"noise on the gradient of shards",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         h.register_hook([](const at::Tensor& g) { return g + 0.1 * at::randn_like(g); });
         return n.down(h);
       },
       common},
      {"dropout of the gradient of full values",
       [](Net& n, const at::Tensor& x) {
         at::Tensor y = n.down(n.up(x));
         y.register_hook([](const at::Tensor& g) { return at::dropout(g, 0.5, true); });
         return y;
       },
       ""},
      {"as many numbers as a shard has, of constants",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         const at::Tensor y = n.down(h);
         const at::Tensor zero = at::nonzero(x.detach() > -1).sum().to(at::kDouble) * 0;
         return y * at::bernoulli(at::full_like(h, 0.5) + zero).mean();
       },
       "it is not known of which shard"},
      {"a number for each element that values of a shard choose",
       [](Net& n, const at::Tensor& x) {
         const at::Tensor h = n.up(x);
         at::Tensor y = n.down(h);
         const int64_t chosen = at::nonzero(h.detach() > 0).size(0);
         for (int64_t i = 0; i < chosen; ++i) y = y * at::rand({1}, x.options());
         return y;
       },
       "random numbers are drawn by"},
      {"one number for all", [](Net& n, const at::Tensor& x) { return n.down(n.up(x)) * at::rand({1}, x.options()); },
       ""},
  };
}

}  // namespace

TEST_CASE("random numbers are proven where the ranks draw those of one rank") {
  for (const int64_t rank : {0, 1}) {
    for (const DrawingCase& one : DrawingCases()) {
      const Plan plan = PlanOfRules("drawing", {{"up", ColwiseStyle()}, {"down", RowwiseStyle()}});
      const Proof proof = ProofOfDrawing(one.forward, "tp=2", plan, rank);
      INFO(one.name << ", rank " << rank << "\n" << ToText(proof));
      if (one.unproven.empty()) CHECK(proof.faults.empty());
      CHECK(proof.holds() == one.unproven.empty());
      if (!one.unproven.empty()) CHECK_THAT(ToText(proof), Catch::Contains(one.unproven));
    }
  }
}

// One feature a rank: memory for a mask of all features has one element along the dim too.
TEST_CASE("a mask for all features is not that of a rank's one feature") {
  const Plan plan = PlanOfRules("drawing", {{"up", ColwiseStyle()}, {"down", RowwiseStyle()}});
  const auto drops = [](DrawingImpl& n, const at::Tensor& x) {
    const at::Tensor h = n.up(x);
    return n.down(h * h.new_empty({2, 3, 1}).bernoulli_(0.5));
  };
  const Proof proof = ProofOfDrawing(drops, "tp=8", plan, 1);
  INFO(ToText(proof));
  CHECK_FALSE(proof.holds());
}

// The owner alone would draw, and the common stream move on there alone.
TEST_CASE("random numbers for values that one rank owns are not proven") {
  Style owned = ColwiseStyle();
  owned.params = {{"weight", Layout::Owned(0, 0)}, {"bias", Layout::Owned(0, 0)}};
  owned.outputs = {Redistribution{Layout::Owned(-1, 0), Layout::Owned(-1, 0)}};
  Style down = RowwiseStyle();
  down.params = {{"weight", Layout::Owned(1, 0)}};
  down.inputs = {Redistribution{Layout::Owned(-1, 0), Layout::Owned(-1, 0)}};
  const Plan plan = PlanOfRules("drawing", {{"up", owned}, {"down", down}});
  const auto noise = [](DrawingImpl& n, const at::Tensor& x) {
    const at::Tensor h = n.up(x);
    return n.down(h + 0.1 * at::randn_like(h));
  };
  for (const int64_t rank : {0, 1}) {
    const Proof proof = ProofOfDrawing(noise, "tp=2", plan, rank);
    INFO(ToText(proof));
    CHECK(proof.faults.empty());
    CHECK_FALSE(proof.holds());
  }
}

// Between two calls of modules that can be intercepted, operators draw from the common stream.
TEST_CASE("random numbers for shards are not proven where the calls of the model are not intercepted") {
  const Plan plan = PlanOfRules("drawing", {{"up", ColwiseStyle()}, {"down", RowwiseStyle()}});
  const auto drops = [](DrawingImpl& n, const at::Tensor& x) { return n.down(at::dropout(n.up(x), 0.5, true)); };
  const Proof proof = ProofOfDrawing(drops, "tp=2", plan, 0, /*intercepted=*/false);
  INFO(ToText(proof));
  CHECK_FALSE(proof.holds());
  CHECK_THAT(ToText(proof), Catch::Contains("draw the same random numbers for their shards"));
}

}  // namespace moonshard::test
