#include "dsl/program/run/difference.h"

#include <ATen/TensorOperators.h>

namespace moonshard {

double RelativeDifference(const at::Tensor& got, const at::Tensor& expected) {
  if (expected.numel() == 0) return 0;
  const at::Tensor e = expected.to(c10::kCPU, c10::kDouble);
  const double difference = (got.to(c10::kCPU, c10::kDouble) - e).abs().max().item<double>();
  const double largest = e.abs().max().item<double>();
  return largest > 0 ? difference / largest : difference;
}

}  // namespace moonshard
