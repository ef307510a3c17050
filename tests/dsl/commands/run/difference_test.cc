// How far tensors are apart, and how far rounding alone may bring them.
#include "dsl/commands/run/difference.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include <ATen/ATen.h>

namespace moonshard::test {
namespace {

TEST_CASE("a difference is relative to the largest value expected, or to the scale that it has at least") {
  const at::Tensor expected = at::tensor({1.0, -4.0});
  CHECK(RelativeDifference(at::tensor({1.0, -4.0}), expected) == 0);
  CHECK(RelativeDifference(at::tensor({1.5, -4.0}), expected) == 0.125);
  CHECK(RelativeDifference(at::tensor({1.5, -4.0}), expected, /*least_scale=*/2) == 0.125);
  CHECK(RelativeDifference(at::tensor({1.5, -4.0}), expected, /*least_scale=*/8) == 0.0625);
  CHECK(RelativeDifference(at::zeros({2}), at::zeros({2})) == 0);
  CHECK(RelativeDifference(at::full({2}, 3.0), at::zeros({2})) == 3);
  CHECK(RelativeDifference(at::empty({0}), at::empty({0})) == 0);
  CHECK(std::isnan(RelativeDifference(at::full({1}, std::nan("")), at::ones({1}))));
  CHECK(LargestValue(expected) == 4);
  CHECK(LargestValue(at::Tensor()) == 0);
}

TEST_CASE("what is zero but for rounding passes, what is small does not") {
  const Tolerance tolerance{2e-4, std::numeric_limits<float>::epsilon(), "float32"};
  const double largest = 0.5;  // of all gradients
  const double scale = tolerance.LeastScale(largest, /*terms=*/1024);
  const double absolute = tolerance.relative * scale;
  CHECK(absolute == Approx(32 * std::numeric_limits<float>::epsilon() * largest));
  // The gradient of a key's bias, of which softmax leaves nothing.
  const at::Tensor rounding = at::full({4}, 3e-9, at::kDouble);
  CHECK(RelativeDifference(rounding, at::zeros({4}, at::kDouble), scale) < tolerance.relative);
  CHECK(RelativeDifference(rounding, -rounding, scale) < tolerance.relative);
  // A thousandth of the largest gradient, and off by a hundredth of itself.
  const at::Tensor small = at::full({4}, largest / 1000, at::kDouble);
  CHECK(RelativeDifference(small * 1.01, small, scale) > tolerance.relative);
  CHECK(RelativeDifference(small, at::zeros({4}, at::kDouble), scale) > tolerance.relative);
  CHECK(Tolerance{0, 1e-7, "--tolerance"}.LeastScale(1, 100) == 0);
}

}  // namespace
}  // namespace moonshard::test
