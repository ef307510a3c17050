// Selective recomputation: what is kept is not computed twice, and gradients are those without recomputation, to the
// bit.
#include <catch2/catch.hpp>

#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/intercept/operator_scope.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/recompute/recompute.h"
#include "engine/runtime/redistribute/ring_attention.h"
#include "tests/engine/runtime/fsdp/net.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

// How often a kernel ran, by operator.
class Counter final : public OperatorHandler {
 public:
  void Handle(const c10::OperatorHandle& op, c10::Stack& /*stack*/, Next& next) override {
    ++counts[op.schema().name().substr(6)];
    next.Run();
  }
  std::map<std::string, int> counts;
};

using Matmuls = Recomputed::Matmuls;

at::Tensor Numbers(int64_t seed, at::IntArrayRef shape) {
  int64_t count = 1;
  for (int64_t n : shape) count *= n;
  return at::sin(at::arange(count, at::kDouble) * seed).view(shape).set_requires_grad(true);
}

// Three products of matrices, attention and dropout.
std::vector<at::Tensor> Block(std::vector<at::Tensor> in) {
  at::Tensor x = at::matmul(in[0].flatten(0, 1), in[1]).view({2, 4, 6});
  x = at::scaled_dot_product_attention(x.unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1), {}, 0, true).squeeze(1);
  x = at::dropout(x, 0.25, true);
  x = at::addmm(in[2], at::tanh(x).flatten(0, 1), in[1]);
  return {at::mm(at::dropout(x, 0.25, true), in[1])};
}

struct KeptOutcome {
  at::Tensor output;
  std::vector<at::Tensor> grads;
  std::map<std::string, int> counts;
};

KeptOutcome RunKept(const std::optional<std::optional<KeptResults::Policy>>& recomputed) {
  torch::manual_seed(3);
  const std::vector<at::Tensor> in = {Numbers(3, {2, 4, 6}), Numbers(5, {6, 6}), Numbers(7, {6})};
  Counter counter;
  const OperatorScope scope(counter);
  const at::Tensor output = recomputed ? Recompute(Block, in, *recomputed)[0] : Block(in)[0];
  torch::rand({5});  // others draw in between
  output.square().sum().backward();
  return {output.detach(), {in[0].grad(), in[1].grad(), in[2].grad()}, counter.counts};
}

TEST_CASE("kept operators run once, and gradients are the same to the bit") {
  const KeptOutcome plain = RunKept(std::nullopt);
  const auto forward_products = [](const KeptOutcome& outcome) {
    return outcome.counts.at("mm") + outcome.counts.at("addmm");
  };
  const auto attention = [](const KeptOutcome& outcome) {
    int n = 0;
    for (const auto& [op, count] : outcome.counts) {
      if (op.starts_with("_scaled_dot_product_flash_attention") && !op.ends_with("backward")) n += count;
    }
    return n;
  };
  REQUIRE(attention(plain) == 1);
  struct Case {
    std::string name;
    std::optional<KeptResults::Policy> policy;
    int products;   // run again
    int attention;  // run again
  };
  const Case cases[] = {
      {"nothing", std::nullopt, 3, 1},
      {"attention", KeptResults::Policy{true, Matmuls::kNone}, 3, 0},
      {"every second product", KeptResults::Policy{false, Matmuls::kEverySecond}, 1, 1},
      {"every product", KeptResults::Policy{false, Matmuls::kAll}, 0, 1},
      {"attention and every second product", KeptResults::Policy{true, Matmuls::kEverySecond}, 1, 0},
  };
  for (const Case& c : cases) {
    INFO(c.name);
    const KeptOutcome outcome = RunKept(c.policy);
    CHECK(at::equal(outcome.output, plain.output));
    for (size_t i = 0; i < plain.grads.size(); ++i) CHECK(at::equal(outcome.grads[i], plain.grads[i]));
    CHECK(forward_products(outcome) == forward_products(plain) + c.products);
    CHECK(attention(outcome) == attention(plain) + c.attention);
  }
}

TEST_CASE("a retained graph can be gone through again") {
  const std::vector<at::Tensor> in = {Numbers(3, {2, 4, 6}), Numbers(5, {6, 6}), Numbers(7, {6})};
  torch::manual_seed(3);
  const at::Tensor output = Recompute(Block, in, KeptResults::Policy{true, Matmuls::kAll})[0];
  output.sum().backward({}, /*retain_graph=*/true);
  const at::Tensor once = in[1].grad().clone();
  output.sum().backward();
  CHECK(at::equal(in[1].grad(), once * 2));
}

TEST_CASE("what kept results cannot do is an error") {
  const at::Tensor x = Numbers(3, {4, 4});
  using Catch::Contains;
  SECTION("a result that is changed in place") {
    const auto inside = [](std::vector<at::Tensor> in) {
      return std::vector<at::Tensor>{at::mm(in[0], in[0]).add_(1).square()};
    };
    const at::Tensor y = Recompute(inside, {x}, KeptResults::Policy{false, Matmuls::kAll})[0];
    CHECK_THROWS_WITH(y.sum().backward(), Contains("MS0506") && Contains("aten::mm was changed in place"));
  }
  // matmul of more than two dims returns the product by an operator that does not declare its view.
  SECTION("a result that is changed in place through the view of a matmul") {
    struct Case {
      std::vector<int64_t> left, right;
      KeptResults::Policy policy;
      const char* op;
    };
    const auto [left, right, policy, op] =
        GENERATE(Case{{2, 2, 3, 4}, {2, 2, 4, 3}, KeptResults::Policy{true, Matmuls::kNone}, "aten::bmm"},
                 Case{{2, 3, 4}, {4, 4}, KeptResults::Policy{false, Matmuls::kEverySecond}, "aten::mm"});
    const std::vector<at::Tensor> in = {Numbers(3, left), Numbers(5, right)};
    for (const bool of_view : {false, true}) {
      const auto inside = [of_view](std::vector<at::Tensor> given) {
        at::Tensor product = at::matmul(given[0], given[1]);
        (of_view ? product.transpose(0, 1) : product).div_(3);
        return std::vector<at::Tensor>{product.exp()};
      };
      const at::Tensor y = Recompute(inside, in, policy)[0];
      CHECK_THROWS_WITH(y.sum().backward(), Contains("MS0506") && Contains(std::string(op) + " was changed in place"));
    }
    const auto outside = [](std::vector<at::Tensor> given) {
      return std::vector<at::Tensor>{at::matmul(given[0], given[1]).div(3).exp()};
    };
    Recompute(outside, in, policy)[0].sum().backward();
    const at::Tensor got = in[0].grad().clone();
    in[0].mutable_grad().reset();
    outside(in)[0].sum().backward();
    CHECK(at::equal(got, in[0].grad()));
  }
  SECTION("another way in the second run") {
    int run = 0;
    const auto inside = [&run](std::vector<at::Tensor> in) {
      const at::Tensor y = ++run == 1 ? at::tanh(in[0]) : at::mm(in[0], in[0]);
      return std::vector<at::Tensor>{y};
    };
    const at::Tensor y = Recompute(inside, {x}, KeptResults::Policy{false, Matmuls::kAll})[0];
    CHECK_THROWS_WITH(y.sum().backward(), Contains("calls aten::mm, the first run called no further operator"));
  }
}

// A region in a chosen run and a product outside of it: of each product, how often it ran in both runs.
TEST_CASE("operators inside a region run again, and may change what they made") {
  const auto inside = [](std::vector<at::Tensor> in) {
    const KeepAllScope keep;
    const at::Tensor outside = at::mm(in[0], in[0]);
    at::Tensor sum;
    {
      const Region region("a test", "", MeshAxis::kTp);
      sum = at::bmm(outside.unsqueeze(0), outside.unsqueeze(0)).mul_(2).squeeze(0);
    }
    return std::vector<at::Tensor>{sum};
  };
  const at::Tensor x = Numbers(3, {4, 4});
  inside({x})[0].sum().backward();
  const at::Tensor plain = x.grad().clone();
  x.mutable_grad().reset();
  Counter counter;
  {
    const OperatorScope scope(counter);
    const at::Tensor y = Recompute(inside, {x}, KeptResults::Policy{true, Matmuls::kAll})[0];
    CHECK(counter.counts.at("bmm") == 1);
    y.sum().backward();
  }
  CHECK(at::equal(x.grad(), plain));
  CHECK(counter.counts.at("bmm") == 2 + 2);  // two in the backward
  CHECK(counter.counts.at("mm") == 1 + 2);
}

TEST_CASE("recomputed ring attention exchanges its keys again, with any choice of kept results") {
  const auto full = [](int64_t seed) { return Numbers(seed, {1, 2, 6, 4}).detach(); };
  RunRanks("cp=2", [&](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kCp);
    const RingAttention attend(group, "attention", false);
    const auto inside = [&](std::vector<at::Tensor> in) {
      return std::vector<at::Tensor>{attend(in[0], in[1], in[2], 6, {.scale = 1})};
    };
    const auto leaves = [&] {
      std::vector<at::Tensor> out;
      for (const int64_t seed : {3, 5, 7}) {
        out.push_back(full(seed).narrow(2, group->rank() * 3, 3).clone().set_requires_grad(true));
      }
      return out;
    };
    const std::vector<at::Tensor> plain = leaves();
    inside(plain)[0].square().sum().backward();
    for (const bool attention : {false, true}) {
      for (const Matmuls matmuls : {Matmuls::kNone, Matmuls::kAll}) {
        const std::vector<at::Tensor> in = leaves();
        group->ClearCounts();
        Recompute(inside, in, KeptResults::Policy{attention, matmuls})[0].square().sum().backward();
        for (size_t i = 0; i < in.size(); ++i) ExpectEqual(in[i].grad(), plain[i].grad(), "a gradient");
        Expect(group->counts().of(Direction::kForward, CollectiveKind::kAllToAll).count == 2, "two forward exchanges");
        Expect(group->counts().of(Direction::kBackward, CollectiveKind::kAllToAll).count == 2, "two in the backward");
      }
    }
  });
}

TEST_CASE("under a plan, chosen modules are not computed again") {
  const auto ids = [] { return torch::arange(10).view({2, 5}); };
  for (const char* mesh_text : {"tp=1", "tp=2", "dp=2"}) {
    DYNAMIC_SECTION(mesh_text) {
      RunRanks(mesh_text, [&](DeviceMesh& mesh) {
        const auto run = [&](bool recomputes, const std::vector<ModulePattern>& keep) {
          Plan plan = NetRules();
          plan.data_parallel.emplace().wrap = {{"layer_*"}};
          if (recomputes) plan.recompute.push_back({.modules = {{"layer_*"}}, .keep_modules = keep});
          auto model = Parallelize(MakeNet({}), plan, mesh);
          Counter counter;
          const OperatorScope scope(counter);
          const at::Tensor logits = model.forward(ids());
          logits.square().sum().backward();
          std::map<std::string, at::Tensor> grads;
          for (const LiveParameter& p : model.applied().parameters()) grads[p.path] = p.tensor.grad();
          return std::pair(grads, counter.counts);
        };
        const auto [plain, plain_counts] = run(false, {});
        const auto [all, all_counts] = run(true, {});
        const auto [some, some_counts] = run(true, {{"layer_*.{up,norm}"}});
        for (const auto& [path, grad] : plain) {
          ExpectEqual(all.at(path), grad, path + " recomputed");
          ExpectEqual(some.at(path), grad, path + " recomputed in part");
        }
        const auto products = [](const std::map<std::string, int>& counts) {
          int n = 0;
          for (const char* op : {"mm", "addmm"}) {
            if (const auto found = counts.find(op); found != counts.end()) n += found->second;
          }
          return n;
        };
        Expect(products(all_counts) == products(plain_counts) + 6, "two products in each of three layers run again");
        Expect(products(some_counts) == products(plain_counts) + 3, "one in each, where the other is kept");
        Expect(some_counts.at("tanh") == all_counts.at("tanh"), "what is not kept runs again");
      });
    }
  }
}

// Work that only the runs without gradients do, beside a part whose operators are kept.
TEST_CASE("work of a first run alone is not kept") {
  struct Case {
    bool all;
    bool nested;
    Matmuls matmuls;
  };
  for (const Case& one : {Case{true, false, Matmuls::kNone}, Case{false, false, Matmuls::kAll},
                          Case{false, false, Matmuls::kEverySecond}, Case{false, true, Matmuls::kAll}}) {
    const KeptResults::Policy policy{.attention = true, .matmuls = one.matmuls};
    const auto part = [&](std::vector<at::Tensor> in) -> std::vector<at::Tensor> {
      std::optional<KeepAllScope> all;
      if (one.all) all.emplace();
      if (!at::GradMode::is_enabled()) {
        const KeepNoneScope beside;
        at::softmax(at::mm(in[1], in[1]), -1);
      }
      return {at::mm(at::tanh(at::mm(in[0], in[1])), in[1])};
    };
    const auto whole = [&](std::vector<at::Tensor> in) { return Recompute(part, std::move(in), policy); };
    std::vector<at::Tensor> of_runs[2];
    for (const bool recomputed : {false, true}) {
      const std::vector<at::Tensor> in = {Numbers(3, {4, 6}), Numbers(5, {6, 6})};
      const at::Tensor out = !recomputed ? part(in)[0] : one.nested ? Recompute(whole, in, policy)[0] : whole(in)[0];
      out.square().sum().backward();
      of_runs[recomputed ? 1 : 0] = {in[0].grad(), in[1].grad()};
    }
    CHECK(at::equal(of_runs[1][0], of_runs[0][0]));
    CHECK(at::equal(of_runs[1][1], of_runs[0][1]));
  }
}

}  // namespace
}  // namespace moonshard::test
