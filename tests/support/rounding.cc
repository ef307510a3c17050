#include "tests/support/rounding.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/io/safetensors/checkpoint.h"

namespace moonshard::test {

double RoundingBound(const SumChain& chain, double unit_roundoff) {
  constexpr double kComputations = 2;
  constexpr double kLambda = 6;
  return kComputations * kLambda * std::sqrt(chain.depth * chain.terms) * unit_roundoff;
}

double CurveBound(const SumChain& chain, const TrainingRun& run, double unit_roundoff) {
  return RoundingBound(chain, unit_roundoff) * (run.loss + run.learning_rate * std::sqrt(run.parameters * run.steps));
}

SumChain ChainOf(const std::string& expected_file) {
  int64_t longest = 1;
  int64_t gradients = 0;
  const Checkpoint recorded = Checkpoint::OpenFile(expected_file).ValueOrThrow();
  for (const StoredTensor& tensor : recorded.tensors()) {
    for (const int64_t size : tensor.shape) longest = std::max(longest, size);
    gradients += tensor.name.starts_with("grad.") ? 1 : 0;
  }
  return {.terms = static_cast<double>(longest), .depth = static_cast<double>(2 * gradients)};
}

double RecordedBound(const std::string& expected_file) { return RoundingBound(ChainOf(expected_file)); }

double RecordedBoundOfResults(const std::string& expected_file, double unit_roundoff) {
  SumChain chain = ChainOf(expected_file);
  chain.terms = 1;
  return RoundingBound(chain, unit_roundoff);
}

}  // namespace moonshard::test
