// Sharing of moves between siblings: how many collectives run, and what must not be shared.
#include <catch2/catch.hpp>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/runtime/redistribute/call_frame.h"
#include "engine/runtime/redistribute/shared_redistributions.h"
#include "tests/support/ranks.h"

namespace moonshard {
namespace {

using test::Expect;
using test::ExpectEqual;
using test::RunRanks;

at::Tensor SharedLeaf(const at::Tensor& value) { return value.clone().set_requires_grad(true); }
void BackwardOf(const at::Tensor& loss) { torch::autograd::backward({loss}, {}); }
at::Tensor Numbers(double value) { return at::full({4}, value, at::kDouble); }

TensorRedistribution Make(const std::shared_ptr<AxisGroup>& group, const Layout& from, const Layout& to, int uses = 0,
                          const std::string& label = "move") {
  RedistributionOptions options;
  options.label = label;
  options.uses = uses;
  return TensorRedistribution::Make(from, to, group, options).ValueOrThrow();
}

int64_t Count(const AxisGroup& group, Direction direction, CollectiveKind kind) {
  return group.counts().of(direction, kind).count;
}

TEST_CASE("siblings share a move and one collective brings their gradients back") {
  for (int uses : {0, 3}) {
    RunRanks("tp=2", [uses](DeviceMesh& mesh) {
      const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
      const double rank = static_cast<double>(group->rank());
      at::Tensor x = SharedLeaf(Numbers(rank));
      at::Tensor loss = at::zeros({}, at::kDouble);
      size_t kept = 0;
      {
        CallFrame frame;
        // Three moves that differ in their labels only, as those of q, k and v do.
        for (int i = 1; i <= 3; ++i) {
          const auto move = Make(group, Layout::Shard(0), Layout::Shared(), uses, "sibling");
          const at::Tensor y = RunShared(move, x);
          ExpectEqual(y, at::cat({Numbers(0), Numbers(1)}), "gathered");
          loss = loss + (y * i).sum() * (rank + 1);
        }
        kept = frame.redistributions().kept();
      }
      Expect(kept == (uses == 0 ? 1 : 0), "kept until the last use, or the end of the frame");
      Expect(Count(*group, Direction::kForward, CollectiveKind::kAllGather) == 1, "one all-gather");
      BackwardOf(loss);
      ExpectEqual(x.grad(), Numbers(6 * (1 + 2)), "the siblings' gradients add up");
      Expect(Count(*group, Direction::kBackward, CollectiveKind::kReduceScatter) == 1, "one reduce-scatter");
      Expect(CallFrame::Current() == nullptr, "no frame is left");
    });
  }
}

TEST_CASE("what must not be shared is not") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
    const auto move = Make(group, Layout::Shard(0), Layout::Shared());
    const auto gathers = [&] { return Count(*group, Direction::kForward, CollectiveKind::kAllGather); };
    const double rank = static_cast<double>(group->rank());

    at::Tensor x = SharedLeaf(Numbers(rank));
    {
      CallFrame outer;
      const at::Tensor first = RunShared(move, x);
      Expect(RunShared(move, x).is_same(first) && gathers() == 1, "the same call");
      {
        CallFrame inner;
        Expect(!RunShared(move, x).is_same(first) && gathers() == 2, "another frame");
      }
      {
        const at::NoGradGuard no_grad;
        Expect(!RunShared(move, x).requires_grad() && gathers() == 3, "gradients off");
      }
      Expect(RunShared(move, x).is_same(first) && gathers() == 3, "gradients on again");
      const auto other = Make(group, Layout::Shard(0), Layout::Replicate());
      Expect(!RunShared(other, x).is_same(first) && gathers() == 4, "another move");
      {
        const at::NoGradGuard no_grad;
        x.add_(1);
      }
      const at::Tensor changed = RunShared(move, x);
      ExpectEqual(changed, at::cat({Numbers(1), Numbers(2)}), "an input changed in place");
      Expect(gathers() == 5, "an input changed in place");
      {
        const at::NoGradGuard no_grad;
        changed.mul_(0);
      }
      ExpectEqual(RunShared(move, x), at::cat({Numbers(1), Numbers(2)}), "a result changed in place");
    }
    const int64_t before = gathers();
    RunShared(move, x);
    RunShared(move, x);
    Expect(gathers() == before + 2, "no frame, no sharing");
  });
}

TEST_CASE("an address that is used again is another tensor") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
    const auto move = Make(group, Layout::Shard(0), Layout::Shared());
    CallFrame frame;
    for (int i = 0; i < 100; ++i) {
      at::Tensor x = Numbers(i + static_cast<double>(group->rank()));
      ExpectEqual(RunShared(move, x), at::cat({Numbers(i), Numbers(i + 1)}), "step " + std::to_string(i));
    }
    Expect(frame.redistributions().kept() <= 1, "results of dead tensors are dropped");
  });
}

TEST_CASE("a frame ends by an exception") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
    const auto move = Make(group, Layout::Replicate(), Layout::Shared());
    at::Tensor x = SharedLeaf(Numbers(1));
    try {
      CallFrame frame;
      RunShared(move, x);
      throw std::runtime_error("a module's own error");
    } catch (const std::runtime_error&) {
    }
    Expect(CallFrame::Current() == nullptr, "no frame is left");
    CallFrame frame;
    BackwardOf((RunShared(move, x) + RunShared(move, x)).sum());
    ExpectEqual(x.grad(), Numbers(4), "the next call is right");
    Expect(Count(*group, Direction::kBackward, CollectiveKind::kAllReduce) == 1, "one all-reduce");
  });
}

TEST_CASE("moves work in inference mode and share there") {
  RunRanks("tp=2", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp);
    const c10::InferenceMode inference;
    CallFrame frame;
    const at::Tensor x = Numbers(static_cast<double>(group->rank()));
    const auto gather = Make(group, Layout::Shard(0), Layout::Replicate());
    ExpectEqual(RunShared(gather, x), at::cat({Numbers(0), Numbers(1)}), "gathered");
    ExpectEqual(RunShared(gather, x), at::cat({Numbers(0), Numbers(1)}), "shared");
    Expect(Count(*group, Direction::kForward, CollectiveKind::kAllGather) == 1, "one all-gather");
    const auto reduce = Make(group, Layout::Partial(), Layout::Replicate());
    ExpectEqual(reduce(Numbers(2)), Numbers(4), "reduced");
    Expect(RunShared(Make(group, Layout::Replicate(), Layout::Shared()), x).is_same(x),
           "an identity row is the tensor");
  });
}

TEST_CASE("the whole size of a sequence is remembered for the call that cut it") {
  RunRanks("tp=4", [](DeviceMesh& mesh) {
    const auto group = AxisGroup::Make(mesh, MeshAxis::kTp, {CheckOptions::Mode::kNever});
    const auto cut = Make(group, Layout::Replicate(), Layout::Shard(1));
    const auto join = Make(group, Layout::Shard(1), Layout::Replicate());
    // 5 and 6 elements over 4 ranks: rank 0 holds two of either.
    for (int64_t size : {5, 6, 3, 1}) {
      const at::Tensor whole = at::arange(2 * size, at::kDouble).view({2, size});
      CallFrame frame;
      ExpectEqual(join(cut(whole)), whole, "one size in this call");
    }
    CallFrame frame;
    const at::Tensor five = at::arange(5, at::kDouble).view({1, 5});
    const at::Tensor six = at::arange(6, at::kDouble).view({1, 6});
    const at::Tensor shard_of_five = cut(five);
    const at::Tensor shard_of_six = cut(six);
    ExpectEqual(join(shard_of_five), five, "the first of two sizes in one call");
    ExpectEqual(join(shard_of_six), six, "the second of two sizes in one call");
  });
}

}  // namespace
}  // namespace moonshard
