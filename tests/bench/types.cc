// What the checker of layouts costs an operator, on the meta device, where an operator does nothing else: small
// additions and products, forward and backward, with and without it.
//   bench_types [PAIRS]
#include <cstdio>

#include <ATen/ATen.h>

#include "engine/analysis/types/operator_checker.h"
#include "engine/runtime/intercept/operator_scope.h"
#include "tests/bench/timing.h"

namespace moonshard::bench {
namespace {

constexpr int kLayers = 200;

at::Tensor Step(const at::Tensor& x, const at::Tensor& w) {
  at::Tensor y = x;
  for (int i = 0; i < kLayers; ++i) y = at::silu(at::linear(y, w)) + y;
  return y.sum();
}

void Run(int pairs) {
  const at::TensorOptions options = at::TensorOptions().device(at::kMeta);
  const at::Tensor x = at::empty({4, 16, 32}, options);
  at::Tensor w = at::empty({32, 32}, options).requires_grad_();
  int64_t operators = 0;
  const auto step = [&] {
    w.mutable_grad().reset();
    Step(x, w).backward();
  };
  const auto checked = [&] {
    OperatorChecker checker({{MeshAxis::kTp, 2, 0}}, RuleTable::BuiltIn());
    checker.SetLeaf(w, TensorType(1, AxisType::Full()));
    SetType(x, TensorType(1, AxisType::Full()));
    const OperatorScope scope(checker);
    step();
    operators = checker.operators();
  };
  const PairTimes times = TimePairs(checked, step, pairs);
  std::printf("%lld operators: %.2f ms checked, %.2f ms not: %.2f us per operator\n", static_cast<long long>(operators),
              times.a_ms, times.b_ms, (times.a_ms - times.b_ms) * 1e3 / static_cast<double>(operators));
}

}  // namespace
}  // namespace moonshard::bench

int main(int argc, char** argv) { moonshard::bench::Run(moonshard::bench::Arguments(argc, argv).Times(0, 15)); }
