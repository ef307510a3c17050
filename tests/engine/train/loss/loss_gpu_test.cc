// The fused kernels on a real GPU against the same functions on the CPU. Skipped where no device is.
#include <catch2/catch.hpp>

#include <limits>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include "engine/runtime/mesh/device.h"
#include "engine/train/loss/local_kernels.h"
#include "tests/engine/train/loss/loss_cases.h"
#include "tests/support/skip.h"

namespace moonshard {
namespace {

using test::ExpectNear;
using test::Numbers;
using test::SomeTargets;

struct Tolerance {
  at::ScalarType dtype;
  double statistics;
  double gradient;
};

TEST_CASE("the kernels compute what LibTorch's operators compute on the CPU") {
  const Result<ChosenDevice> chosen = ChooseDevice(DeviceChoice::kCuda, 0);
  if (!chosen.ok()) {
    CHECK(chosen.diagnostics()[0].finding == Finding::kBadMesh);
    test::Skip("no CUDA device: " + chosen.diagnostics()[0].required);
    return;
  }
  const c10::Device gpu = chosen.value().device;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Tolerance& t : {Tolerance{at::kDouble, 1e-12, 1e-12}, Tolerance{at::kFloat, 1e-5, 1e-6},
                             Tolerance{at::kBFloat16, 1e-5, 1.0 / 128}, Tolerance{at::kHalf, 1e-5, 1.0 / 1024}}) {
    for (const int64_t columns : {1, 7, 331, 4099}) {
      at::Tensor logits = Numbers({40, columns}, 5, 1);
      logits[1] *= 1000;
      logits[2].slice(0, 0, columns / 2).fill_(-kInfinity);
      logits[3].fill_(-kInfinity);
      logits[4][columns / 3] = kInfinity;
      logits = logits.to(t.dtype);
      // This rank's columns begin at 5 of a larger vocabulary: some targets are another rank's.
      const Interval shard = {5, columns};
      const at::Tensor targets = SomeTargets({40}, columns + 10);
      const TargetColumns here = TargetColumns::Of(targets, shard);
      const TargetColumns there = TargetColumns::Of(targets.to(gpu), shard);
      REQUIRE(HaveKernels(logits.to(gpu)));
      const Wanted wanted = {.target = true, .shifted_sum = true, .moment = true};
      const at::Tensor want = at::empty({wanted.count(), 40}, AccumulationType(t.dtype));
      const at::Tensor got = at::empty_like(want, want.options().device(gpu));
      LocalStatistics(logits, here, wanted, want);
      LocalStatistics(logits.to(gpu), there, wanted, got);
      ExpectNear(got.cpu(), want, t.statistics, std::string(c10::toString(t.dtype)) + " statistics");

      const auto row = [&](double seed) { return Numbers({40}, 1, seed).to(want.scalar_type()); };
      const at::Tensor max = want[0].masked_fill(want[0] == -kInfinity, 0);
      const at::Tensor log_sum = want[1].log() + 0.5;
      const GradientCoefficients on_cpu = {row(1), row(2), row(3), row(4)};
      const GradientCoefficients on_gpu = {row(1).to(gpu), row(2).to(gpu), row(3).to(gpu), row(4).to(gpu)};
      const at::Tensor want_gradient = at::empty_like(logits);
      const at::Tensor got_gradient = logits.to(gpu);  // in place, as a head's chunks are
      LocalGradient(logits, max, log_sum, here, on_cpu, want_gradient);
      LocalGradient(got_gradient, max.to(gpu), log_sum.to(gpu), there, on_gpu, got_gradient);
      ExpectNear(got_gradient.cpu(), want_gradient, t.gradient, std::string(c10::toString(t.dtype)) + " gradient");
    }
  }
  SECTION("a whole loss") {
    const auto group = AxisGroup::Make(DeviceMesh::Recording(MeshShape{}), MeshAxis::kTp);
    const Vocabulary vocabulary = Vocabulary::Make(group, 331).ValueOrThrow();
    const at::Tensor here = Numbers({3, 9, 331}, 4, 1).requires_grad_();
    const at::Tensor there = here.detach().to(gpu).requires_grad_();
    const at::Tensor targets = SomeTargets({3, 9}, 331);
    const CrossEntropyOptions options{LossReduction::kMean, 2, 0.1, 1e-3};
    const at::Tensor want = CrossEntropy(vocabulary, here, targets, options) + Entropy(vocabulary, here).sum();
    const at::Tensor got = CrossEntropy(vocabulary, there, targets.to(gpu), options) + Entropy(vocabulary, there).sum();
    CHECK(at::equal(CrossEntropy(vocabulary, there, targets, options) + Entropy(vocabulary, there).sum(), got));
    want.backward();
    got.backward();
    ExpectNear(got.cpu(), want, 1e-12, "loss");
    ExpectNear(there.grad().cpu(), here.grad(), 1e-12, "gradient");
  }
}

}  // namespace
}  // namespace moonshard
