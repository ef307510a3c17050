// Rounding: how far apart two right computations of one tensor may be. What one machine recorded is compared with what
// another computes within these bounds and no closer; to the bit are compared only two computations of one machine that
// run the same kernels on the same shapes.
//
// A kernel adds the products of an inner product in an order of its own, fuses the multiplications or not, and does
// both otherwise on a processor with other instructions. Every order is right. With unit roundoff u, a sum of n terms
// is off by at most n u of the sum of their magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
// ed., section 4.2); as single roundings are as often up as down, by at most lambda sqrt(n) u but with probability 2
// exp(-lambda^2 / 2) (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput.
// 41(5), 2019, theorem 2.4). In a chain of sums, each over results of the one before, the errors of all add up, again
// as often up as down: lambda sqrt(depth n) u. Two computations have it each. lambda is 6: 3e-8 a tensor element.
//
// All of it is relative to the largest magnitude of the tensor, which is what RelativeError
// (tests/engine/models/fixture.h) and `moonshard compare` divide by: the magnitudes that are summed are about as large
// as the largest result.
#pragma once

#include <string>

namespace moonshard::test {

// Half the distance between 1 and the next number.
constexpr double kUnitRoundoff32 = 0x1p-24;
constexpr double kUnitRoundoff64 = 0x1p-53;
constexpr double kUnitRoundoffBFloat16 = 0x1p-9;

// What a tensor is made by: `depth` sums one after another, each of at most `terms` numbers.
struct SumChain {
  double terms = 1;
  double depth = 1;
};

// The largest difference of two right computations, relative to the tensor's largest magnitude.
double RoundingBound(const SumChain& chain, double unit_roundoff = kUnitRoundoff32);

// A training run whose losses are compared with those of the same run in other shares or on another machine.
struct TrainingRun {
  double parameters = 1;  // elements
  double steps = 1;
  double learning_rate = 1e-3;
  double loss = 1;  // the largest
};

// The largest difference of two right loss curves. An evaluation is off by `e`, RoundingBound(chain), relative to the
// loss. The gradient of an element is off by e times the largest gradient, which is at most 1 where its norm is clipped
// to 1; its step under AdamW is learning_rate times a ratio of moments, so off by learning_rate e / |g|; and a step so
// far off moves the loss by |g| times that: learning_rate e for each element and step, as often up as down. That is the
// first order: what curvature makes of a difference afterwards is not in it, so that it holds for short runs of small
// learning rates.
double CurveBound(const SumChain& chain, const TrainingRun& run, double unit_roundoff = kUnitRoundoff32);

// The sums behind the outputs and gradients of a model, by the file that recorded them: no sum is longer than the
// longest dim of a recorded tensor, and there is about one for every parameter on the way to the loss and one on the
// way back (a Llama layer has nine parameters, and nine sums one after another: two norms, scores, softmax, values, and
// four of its seven projections).
SumChain ChainOf(const std::string& expected_file);

// RoundingBound of ChainOf, for recorded numbers in float32.
double RecordedBound(const std::string& expected_file);

// The same where every operator computes in float32 and rounds its result to a type of `unit_roundoff`: bfloat16.
double RecordedBoundOfResults(const std::string& expected_file, double unit_roundoff);

}  // namespace moonshard::test
