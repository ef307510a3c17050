// What TensorMove refuses, and what it does to autograd.
#include <catch2/catch.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/runtime/redistribute/call_frame.h"
#include "engine/runtime/redistribute/redistribute.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::ExpectEqual;
using test::RunRanks;

RedistributionOptions Labelled(std::string label) {
  RedistributionOptions options;
  options.label = std::move(label);
  return options;
}

at::Tensor LeafWith(const at::Tensor& value) { return value.clone().set_requires_grad(true); }

Finding FindingOf(const std::function<void()>& run) {
  try {
    run();
  } catch (const PlanError& error) {
    return error.diagnostics().front().finding;
  }
  return Finding::kInternal;
}

TEST_CASE("pairs without a row are errors that name the rows") {
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("tp=2").ValueOrThrow());
  const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
  const std::vector<std::pair<Layout, Layout>> pairs = {
      {Layout::Replicate(), Layout::Partial()},  {Layout::Shared(), Layout::Replicate()},
      {Layout::Shared(), Layout::Shard(0)},      {Layout::SharedLast(4), Layout::Partial()},
      {Layout::Shard(1), Layout::SharedLast(4)}, {Layout::Partial(), Layout::SharedLast(4)},
      {Layout::Shard(0), Layout::Partial()},     {Layout::Shard(0, 4), Layout::Shard(0)},
  };
  for (const auto& [from, to] : pairs) {
    const Result<TensorRedistribution> move = TensorRedistribution::Make(from, to, group, Labelled("layer.q_proj"));
    REQUIRE_FALSE(move.ok());
    CHECK(move.diagnostics()[0].finding == Finding::kNoSuchRedistribution);
    CHECK(move.diagnostics()[0].path == "layer.q_proj");
    CHECK(move.diagnostics()[0].required.find("partial -> shard(d)") != std::string::npos);
  }
}

TEST_CASE("heads and parts that do not fit are errors when the move is made") {
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("tp=4").ValueOrThrow());
  const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
  RedistributionOptions options = Labelled("layer.q_proj");
  options.from_size = 12;
  const auto heads = TensorRedistribution::Make(Layout::Shard(-1, 6), Layout::Replicate(), group, options);
  REQUIRE_FALSE(heads.ok());
  CHECK(heads.diagnostics()[0].finding == Finding::kHeadsDoNotFit);
}

TEST_CASE("equal layouts and an axis of one rank return the tensor itself") {
  const at::Tensor x = LeafWith(at::ones({2}));
  const DeviceMesh two = DeviceMesh::Recording(MeshShape::Parse("tp=2").ValueOrThrow());
  const DeviceMesh one = DeviceMesh::Recording(MeshShape{});
  const auto same = TensorRedistribution::Make(Layout::Shard(0), Layout::Shard(0), AxisGroup::Make(two, MeshAxis::kTp))
                        .ValueOrThrow();
  CHECK(same.is_identity());
  CHECK(same(x).is_same(x));
  const auto alone =
      TensorRedistribution::Make(Layout::Partial(), Layout::Replicate(), AxisGroup::Make(one, MeshAxis::kTp))
          .ValueOrThrow();
  CHECK(alone(x).is_same(x));
}

TEST_CASE("a dim that the tensor does not have") {
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("tp=2").ValueOrThrow());
  const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
  for (int dim : {2, -3}) {
    const auto move =
        TensorRedistribution::Make(Layout::Replicate(), Layout::Shard(dim), group, Labelled("norm")).ValueOrThrow();
    CHECK(FindingOf([&] { move(at::ones({4, 4})); }) == Finding::kBadDim);
  }
}

TEST_CASE("a recording mesh notes collectives and gives shapes of any rank") {
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("dp=2,tp=4").ValueOrThrow(), 7);
  const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
  CHECK(group->rank() == 3);
  const auto cut =
      TensorRedistribution::Make(Layout::Partial(), Layout::Shard(1), group, Labelled("down_proj")).ValueOrThrow();
  const auto join =
      TensorRedistribution::Make(Layout::Shard(1), Layout::Shared(), group, Labelled("q_proj")).ValueOrThrow();
  const CallFrame frame;
  const at::Tensor x = at::empty({2, 5, 6}, at::TensorOptions(at::kMeta).dtype(at::kFloat)).set_requires_grad(true);
  const at::Tensor shard = cut(x);
  CHECK(shard.sizes() == at::IntArrayRef({2, 0, 6}));
  CHECK(join(shard).sizes() == at::IntArrayRef({2, 5, 6}));
  CHECK(group->counts().of(Direction::kForward, CollectiveKind::kReduceScatter).bytes == int64_t{2} * 5 * 6 * 4);
}

TEST_CASE("in-place operators on a moved identity raise") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
    const auto move =
        TensorRedistribution::Make(Layout::Replicate(), Layout::Shared(), group, Labelled("m")).ValueOrThrow();
    const at::Tensor leaf = LeafWith(at::ones({3}, at::kDouble));
    const at::Tensor x = leaf * 1;
    at::Tensor y = move(x);
    bool raised = false;
    try {
      y.mul_(3);
    } catch (const c10::Error&) {
      raised = true;
    }
    Expect(raised, "an in-place operator would change x behind its history");
  });
}

TEST_CASE("a move cannot be differentiated twice") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
    const auto move =
        TensorRedistribution::Make(Layout::Replicate(), Layout::Shared(), group, Labelled("m")).ValueOrThrow();
    const at::Tensor x = LeafWith(at::ones({3}, at::kDouble));
    const at::Tensor y = move(x);
    const Finding finding =
        FindingOf([&] { torch::autograd::grad({(y * y * y).sum()}, {x}, {}, true, /*create_graph=*/true); });
    Expect(finding == Finding::kNotSupported, "an error, and the same on every rank");
  });
}

TEST_CASE("memory is reused only where nobody else sees it") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
    const double rank = static_cast<double>(group->rank());
    const auto reduce =
        TensorRedistribution::Make(Layout::Partial(), Layout::Replicate(), group, Labelled("o")).ValueOrThrow();

    at::Tensor kept = at::full({3}, rank + 1, at::kDouble);
    ExpectEqual(reduce(kept), at::full({3}, 3, at::kDouble), "reduced");
    ExpectEqual(kept, at::full({3}, rank + 1, at::kDouble), "a tensor that the caller keeps");

    at::Tensor given = at::full({3}, rank + 1, at::kDouble);
    const void* memory = given.data_ptr();
    const at::Tensor out = reduce(std::move(given));
    ExpectEqual(out, at::full({3}, 3, at::kDouble), "reduced in place");
    Expect(out.data_ptr() == memory, "the memory of a tensor that was given away");

    // exp saves its output for backward: the sole tensor, but not the sole owner of its memory.
    const at::Tensor q = LeafWith(at::zeros({3}, at::kDouble));
    const at::Tensor y = reduce(q.exp());
    ExpectEqual(y, at::full({3}, 2, at::kDouble), "a sum of saved outputs");
    torch::autograd::backward({y.sum()}, {});
    ExpectEqual(q.grad(), at::ones({3}, at::kDouble), "the saved output was left alone");

    // A view of something larger.
    at::Tensor base = at::full({4, 3}, rank + 1, at::kDouble);
    ExpectEqual(reduce(base.narrow(0, 0, 1)), at::full({1, 3}, 3, at::kDouble), "a reduced view");
    ExpectEqual(base, at::full({4, 3}, rank + 1, at::kDouble), "the tensor that was viewed");

    // A gradient that two inputs get.
    const auto share =
        TensorRedistribution::Make(Layout::Replicate(), Layout::Shared(), group, Labelled("i")).ValueOrThrow();
    const at::Tensor a = LeafWith(at::ones({3}, at::kDouble));
    const at::Tensor b = LeafWith(at::ones({3}, at::kDouble));
    torch::autograd::backward({share(a) + b}, {at::full({3}, rank + 1, at::kDouble)});
    ExpectEqual(a.grad(), at::full({3}, 3, at::kDouble), "summed over the ranks");
    ExpectEqual(b.grad(), at::full({3}, rank + 1, at::kDouble), "a sibling's gradient");
  });
}

TEST_CASE("shards that are no torch.chunk of one tensor") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
    const auto join =
        TensorRedistribution::Make(Layout::Shard(0), Layout::Shared(), group, Labelled("in")).ValueOrThrow();
    const at::Tensor shard = at::ones({group->rank() == 0 ? 2 : 3}, at::kDouble);
    Expect(FindingOf([&] { join(shard); }) == Finding::kCollectiveMismatch, "found by exchanging sizes");
    RedistributionOptions known = Labelled("in");
    known.from_size = 4;
    const auto fixed = TensorRedistribution::Make(Layout::Shard(0), Layout::Shared(), group, known).ValueOrThrow();
    Expect(FindingOf([&] { fixed(shard); }) == Finding::kCollectiveMismatch, "found on the rank whose shard fits, too");
    ExpectEqual(fixed(at::ones({2}, at::kDouble)), at::ones({4}, at::kDouble), "the group goes on");
  });
}

}  // namespace
}  // namespace moonshard
