// GradientSum in buckets, on thread ranks: the numbers of one sum at the end, and that buckets begin before it.
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

// Parameters 0, 1, 2, each a bucket, which a backward reaches in this order.
struct BucketRig {
  explicit BucketRig(DeviceMesh& mesh)
      : group(AxisGroup::Make(mesh, MeshAxis::kTp)), weight(double(group->rank()) + 1) {
    std::vector<GradientSum::Bucket> buckets;
    for (int i = 0; i < 3; ++i) {
      parameters.push_back(Leaf());
      sum.Add(parameters.back(), group);
      sum.Scale(parameters.back(), 0.5);
      buckets.push_back({{parameters.back()}});
    }
    sum.SetBuckets(buckets, group);
  }
  int64_t sums() const { return group->counts().of(Direction::kBackward, CollectiveKind::kAllReduce).count; }
  // weight * x * p2 * p1 * p0 of ones; `seen` looks when the gradient of what parameter 2 goes into is there.
  at::Tensor Chain(const std::function<void()>& seen = {}) {
    const at::Tensor x = Number(1).set_requires_grad(true);
    const at::Tensor first = x * parameters[2];
    if (seen) first.register_hook([seen](const at::Tensor&) { seen(); });
    return (first * parameters[1] * parameters[0] * weight).sum();
  }
  void Expecting(std::vector<double> gradients, const std::string& what) const {
    for (size_t i = 0; i < 3; ++i) ExpectEqual(parameters[i].grad(), Number(gradients[i]), what);
  }

  std::shared_ptr<AxisGroup> group;
  double weight;  // rank + 1
  GradientSum sum;
  std::vector<at::Tensor> parameters;
};

TEST_CASE("buckets begin while the backward runs") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    BucketRig rig(mesh);
    for (int step = 1; step <= 2; ++step) {
      int64_t seen = -1;
      Backward(rig.Chain([&] { seen = rig.sums() - 3 * (step - 1); }));
      Expect(seen == 2, "begun before the end: " + std::to_string(seen));
      Expect(rig.sums() == 3 * step, "one sum per bucket");
      rig.Expecting({1.5 * step, 1.5 * step, 1.5 * step}, "the mean, accumulated");
    }
  });
}

TEST_CASE("gradients that wait are brought by the next backward") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    BucketRig rig(mesh);
    rig.sum.SetSums(false);
    Backward(rig.Chain());
    Backward(rig.Chain());
    Expect(rig.sums() == 0 && !rig.parameters[0].grad().defined(), "nothing yet");
    rig.sum.SetSums(true);
    Backward(rig.Chain());
    Expect(rig.sums() == 3, "one sum per bucket");
    rig.Expecting({4.5, 4.5, 4.5}, "of three backwards");
  });
}

TEST_CASE("ranks that use other parameters, in another order") {
  RunRanks("tp=3", [](DeviceMesh& mesh) {
    BucketRig rig(mesh);
    const std::vector<at::Tensor>& p = rig.parameters;
    const at::Tensor other = Leaf();
    // Rank 0 is done with them in the opposite order, rank 1 has none of the middle, rank 2 has none at all.
    const at::Tensor output = rig.group->rank() == 0   ? p[0] * p[1] * p[2]
                              : rig.group->rank() == 1 ? p[2] * p[0] * 2
                                                       : other * 2;
    rig.sum.Watch(output);
    Backward(output.sum());
    rig.Expecting({1.5, 0.5, 1.5}, "half the sum of the ranks that used it");
    Expect(rig.sums() == 3, "one sum per bucket");
    Expect(rig.group->rank() != 2 || other.grad().defined(), "what is not summed");
  });
}

TEST_CASE("a parameter that no rank uses, and one that is frozen") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    BucketRig rig(mesh);
    rig.parameters[1].set_requires_grad(false);
    Backward((rig.parameters[2] * rig.weight).sum());
    ExpectEqual(rig.parameters[2].grad(), Number(1.5), "used");
    Expect(!rig.parameters[0].grad().defined() && !rig.parameters[1].grad().defined(), "used nowhere");
    Expect(rig.sums() == 2, "a frozen bucket is none");
    rig.parameters[1].set_requires_grad(true);
    rig.sum.Rearm();
    Backward(rig.Chain());
    rig.Expecting({1.5, 1.5, 3}, "made trainable");
  });
}

TEST_CASE("a gradient that comes again after its bucket has begun is summed too") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    BucketRig rig(mesh);
    const std::vector<at::Tensor>& p = rig.parameters;
    const auto step = [&] {
      // On rank 0 alone parameter 0 is used twice, each time in a backward of its own.
      const at::Tensor x = Number(1).set_requires_grad(true);
      at::Tensor y = Nested::apply(x * p[2] * p[1], p[0]);
      if (rig.group->rank() == 0) y = Nested::apply(y, p[0]);
      rig.sum.Watch(y);
      Backward(y.sum());
    };
    step();
    // Rank 0: y = p2 p1 p0 p0, rank 1: y = p2 p1 p0.
    rig.Expecting({1.5, 1, 1}, "both uses");
    Expect(rig.sums() == 4, "one sum more: " + std::to_string(rig.sums()));
    step();
    rig.Expecting({3, 2, 2}, "again");
    Expect(rig.sums() == 7, "its bucket waits now: " + std::to_string(rig.sums()));
  });
}

TEST_CASE("a backward that throws after a bucket has begun leaves nothing behind") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    BucketRig rig(mesh);
    bool threw = false;
    try {
      const at::Tensor x = Throws::apply(Number(1).set_requires_grad(true));
      Backward((x * rig.parameters[1] * rig.parameters[0] * 100).sum());
    } catch (const std::runtime_error&) {
      threw = true;
    }
    Expect(threw && rig.sums() == 2, "two had begun");
    for (const at::Tensor& p : rig.parameters) Expect(!p.grad().defined(), "nothing was added");
    Backward(rig.Chain());
    rig.Expecting({1.5, 1.5, 1.5}, "the next backward is right");
  });
}

TEST_CASE("a bucket after a sum of parts, over two axes") {
  RunRanks("dp_replicate=2,dp_shard=2,tp=2", [](DeviceMesh& mesh) {
    const auto tp = AxisGroup::Make(mesh, MeshAxis::kTp);
    AxisSet axes = MeshAxis::kDpReplicate;
    axes.insert(MeshAxis::kDpShard);
    const auto data = AxisGroup::Make(mesh, axes);
    const double weight = static_cast<double>(mesh.rank()) + 1;
    GradientSum sum;
    const at::Tensor norm = Leaf();
    const at::Tensor part = Leaf();
    const at::Tensor plain = Leaf();
    sum.Add(norm, tp);
    sum.Add(part, tp, 0, 1, 2);
    for (const at::Tensor& p : {norm, part, plain}) sum.Add(p, data);
    sum.SetBuckets({{{plain}}, {{norm, part}, true}}, data);
    Backward(((norm + part + plain) * weight).sum());
    // Ranks of one tp coordinate: 1, 3, 5, 7 and 2, 4, 6, 8.
    const double own = mesh.coordinate(MeshAxis::kTp) == 0 ? 16 : 20;
    ExpectEqual(plain.grad(), Number(own), "over the data axes");
    ExpectEqual(norm.grad(), Number(36), "over all");
    ExpectEqual(part.grad(), at::tensor({own, 36.0, 36.0}, at::kDouble), "a part over tp too");
    Expect(data->counts().of(Direction::kBackward, CollectiveKind::kAllReduce).count == 2, "one sum per bucket");
  });
}

}  // namespace
}  // namespace moonshard
