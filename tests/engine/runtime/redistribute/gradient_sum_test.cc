// GradientSum against one unsharded sum, on thread ranks; exact.
#include <catch2/catch.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "engine/runtime/redistribute/gradient_sum.h"
#include "tests/engine/runtime/redistribute/graph_parts.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Backward;
using test::Expect;
using test::ExpectEqual;
using test::Leaf;
using test::Nested;
using test::Number;
using test::RunRanks;
using test::Throws;

struct Rig {
  explicit Rig(DeviceMesh& mesh) : group(AxisGroup::Make(mesh, MeshAxis::kTp)), weight(double(group->rank()) + 1) {}
  int64_t sums() const { return group->counts().of(Direction::kBackward, CollectiveKind::kAllReduce).count; }

  std::shared_ptr<AxisGroup> group;
  double weight;  // rank + 1: each rank's own gradient
  GradientSum sum;
};

TEST_CASE("gradients of several micro-batches are summed once each") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    Rig rig(mesh);
    const at::Tensor p = Leaf(2);
    const at::Tensor q = Leaf(1, 5);
    rig.sum.Add(p, rig.group);
    rig.sum.Add(q, rig.group);
    for (int batch = 1; batch <= 3; ++batch) {
      // p is used twice.
      Backward((p * rig.weight * batch).sum() + (p * rig.weight).sum() + (q * rig.weight * batch).sum());
      const int total = batch * (batch + 1) / 2;
      ExpectEqual(p.grad(), Number(3 * (total + batch)), "a parameter that is used twice");
      ExpectEqual(q.grad(), Number(3 * total, 5), "a parameter that is used once");
      Expect(rig.sums() == batch, "one sum per backward for all parameters");
    }
    p.mutable_grad() = at::Tensor();
    Backward((p * rig.weight).sum());
    ExpectEqual(p.grad(), Number(3), "after the gradient was cleared");
  });
}

TEST_CASE("two backwards over one graph") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    Rig rig(mesh);
    const at::Tensor p = Leaf();
    rig.sum.Add(p, rig.group);
    const at::Tensor loss = (p * p).sum() * rig.weight;
    Backward(loss, true);
    Backward(loss);
    ExpectEqual(p.grad(), Number(2 * 2 * 3), "retain_graph");
  });
}

TEST_CASE("a parameter that only one rank uses") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    Rig rig(mesh);
    const at::Tensor p = Leaf();
    const at::Tensor q = Leaf();
    const at::Tensor unused = Leaf();
    for (const at::Tensor& t : {p, q, unused}) rig.sum.Add(t, rig.group);
    Backward(rig.group->rank() == 0 ? (p * 5).sum() : (q * 7).sum());
    ExpectEqual(p.grad(), Number(5), "used on rank 0");
    ExpectEqual(q.grad(), Number(7), "used on rank 1");
    Expect(!unused.grad().defined(), "used nowhere");
  });
}

TEST_CASE("a backward that reaches none of the parameters on one rank takes part by the watched output") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    Rig rig(mesh);
    const at::Tensor p = Leaf();
    const at::Tensor other = Leaf();
    rig.sum.Add(p, rig.group);
    const at::Tensor output = rig.group->rank() == 0 ? p * 4 : other * 2;
    rig.sum.Watch(output);
    Backward(output.sum());
    ExpectEqual(p.grad(), Number(4), "the sum of the ranks that used it");
    Expect(rig.sums() == 1, "one sum");
  });
}

TEST_CASE("a backward that throws leaves nothing behind") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    Rig rig(mesh);
    const at::Tensor p = Leaf();
    const at::Tensor z = Leaf();
    rig.sum.Add(p, rig.group);
    bool threw = false;
    try {
      // p's gradient is ready before the error: autograd runs what was made last first.
      const at::Tensor failing = Throws::apply(z);
      Backward((failing + p * 100).sum());
    } catch (const std::runtime_error& error) {
      threw = std::string(error.what()).find("a backward's own error") != std::string::npos;
    }
    Expect(threw, "the error comes out");
    Expect(!p.grad().defined() && rig.sums() == 0, "nothing was added");
    Backward((p * rig.weight).sum());
    ExpectEqual(p.grad(), Number(3), "the next backward is right");
  });
}

TEST_CASE("nested backwards leave the sum to the outermost") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    Rig rig(mesh);
    const at::Tensor p = Leaf(3);
    rig.sum.Add(p, rig.group);
    at::Tensor x = Leaf(2);
    at::Tensor y = Nested::apply(Nested::apply(x * rig.weight, p), p);
    rig.sum.Watch(y);
    Backward(y.sum());
    // y = weight x p p, dy/dp = 2 weight x p.
    ExpectEqual(p.grad(), Number(3 * 2 * 2 * 3), "summed over both uses and ranks");
    Expect(rig.sums() == 1, "one sum, not one for each nested backward");
  });
}

TEST_CASE("parts of fused weights, sub-groups and dtypes") {
  RunRanks("tp=4", [](DeviceMesh& mesh) {
    Rig rig(mesh);
    const auto pair = AxisGroup::MakeSub(mesh, MeshAxis::kTp, 2);
    const at::Tensor fused = Leaf(1, 5);
    const at::Tensor whole = Leaf();
    const at::Tensor single = at::ones({2}, at::kFloat).set_requires_grad(true);
    rig.sum.Add(fused, pair, 0, 3, 2);
    rig.sum.Add(whole, rig.group);
    rig.sum.Add(single, rig.group);
    Backward((fused * rig.weight).sum() + (whole * rig.weight).sum() + (single * rig.weight).sum().to(at::kDouble));
    const double own = rig.weight;
    const double of_pair = rig.group->rank() < 2 ? 1 + 2 : 3 + 4;
    ExpectEqual(fused.grad(), at::tensor({own, own, own, of_pair, of_pair}, at::kDouble), "a part over a sub-group");
    ExpectEqual(whole.grad(), Number(10), "over the axis");
    ExpectEqual(single.grad(), at::full({2}, 10, at::kFloat), "another dtype");
    Expect(rig.sums() == 2 && pair->counts().of(Direction::kBackward, CollectiveKind::kAllReduce).count == 1,
           "one sum for each group and dtype");
  });
}

TEST_CASE("a parameter that changed its dtype or became trainable is found again") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    Rig rig(mesh);
    at::Tensor p = Leaf();
    at::Tensor frozen = Number(1);
    rig.sum.Add(p, rig.group);
    rig.sum.Add(frozen, rig.group);
    Backward((p * rig.weight).sum());
    ExpectEqual(p.grad(), Number(3), "as it was");
    p.mutable_grad() = at::Tensor();
    {
      const at::NoGradGuard no_grad;
      p.set_data(p.detach().to(at::kFloat));
    }
    frozen.set_requires_grad(true);
    rig.sum.Rearm();
    Backward((p * rig.weight).sum().to(at::kDouble) + (frozen * rig.weight).sum());
    ExpectEqual(p.grad(), at::full({3}, 3, at::kFloat), "after to(float)");
    ExpectEqual(frozen.grad(), Number(3), "after it was made trainable");
  });
}

TEST_CASE("a gradient that several parameters get stays theirs") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    Rig rig(mesh);
    const at::Tensor p = Leaf();
    const at::Tensor bystander = Leaf();
    rig.sum.Add(p, rig.group);
    const at::Tensor seed = Number(rig.weight);
    torch::autograd::backward({p + bystander}, {seed});
    ExpectEqual(p.grad(), Number(3), "summed");
    ExpectEqual(bystander.grad(), Number(rig.weight), "a bystander's gradient");
    ExpectEqual(seed, Number(rig.weight), "the caller's tensor");
  });
}

TEST_CASE("a sparse gradient is an error that names its parameter") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    Rig rig(mesh);
    const at::Tensor table = at::rand({4, 2}).set_requires_grad(true);
    rig.sum.Add(table, rig.group);
    rig.sum.SetPath(table, "embed.weight");
    std::string error;
    try {
      Backward(at::embedding(table, at::zeros({3}, at::kLong), -1, false, /*sparse=*/true).sum());
    } catch (const PlanError& thrown) {
      error = thrown.what();
    }
    Expect(error.find("the sparse gradient of 'embed.weight' cannot be summed over ranks") != std::string::npos, error);
  });
}

TEST_CASE(
    "autograd::grad of a parameter that is summed throws on every rank, and the same graph's backward is summed") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    Rig rig(mesh);
    const at::Tensor p = Leaf(2);
    const at::Tensor part = Leaf(1);
    const at::Tensor own = Leaf(3);
    const at::Tensor x = Leaf(1);
    rig.sum.Add(p, rig.group);
    rig.sum.Add(part, rig.group, 0, 0, 1);
    rig.sum.SetPath(p, "norm.weight");
    const at::Tensor loss = ((p + part + own) * x * rig.weight).sum();
    for (const at::Tensor& refused : {p, part}) {
      std::string message;
      try {
        torch::autograd::grad({loss}, {x, refused}, {}, /*retain_graph=*/true);
      } catch (const PlanError& error) {
        message = error.what();
      }
      Expect(message.find("MS0514") != std::string::npos, message);
      Expect((message.find("'norm.weight'") != std::string::npos) == refused.is_same(p), message);
    }
    // The rank's own, and what is no parameter, are had as before.
    ExpectEqual(torch::autograd::grad({loss}, {own}, {}, true)[0], Number(rig.weight), "own");
    ExpectEqual(torch::autograd::grad({loss}, {x}, {}, true)[0], Number(6 * rig.weight), "an input");
    Expect(rig.sums() == 0 && !p.grad().defined(), "nothing is left of them");
    // A backward for some leaves accumulates, and sums.
    torch::autograd::backward({loss}, {}, true, false, {p});
    ExpectEqual(p.grad(), Number(3), "a backward for this leaf");
    Backward(loss);
    ExpectEqual(p.grad(), Number(6), "both backwards");
  });
}

TEST_CASE("autograd::grad of a gradient that is only scaled throws") {
  RunRanks("tp=2", [](DeviceMesh&) {
    GradientSum sum;
    const at::Tensor p = Leaf(2);
    sum.Scale(p, 0.5);
    std::string message;
    try {
      torch::autograd::grad({p.sum()}, {p});
    } catch (const PlanError& error) {
      message = error.what();
    }
    Expect(message.find("mean") != std::string::npos, message);
  });
}

TEST_CASE("parameters outlive the sum") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const at::Tensor p = Leaf();
    double weight = 0;
    {
      Rig rig(mesh);
      weight = rig.weight;
      rig.sum.Add(p, rig.group);
    }
    Backward((p * weight).sum());
    ExpectEqual(p.grad(), Number(weight), "this rank's own gradient");
  });
}

}  // namespace
}  // namespace moonshard
