#include "engine/runtime/redistribute/presence.h"

#include <ATen/ATen.h>

namespace moonshard {

void Presence::Add(bool present, bool trains) {
  const float flag = present ? 1.0F : 0.0F;
  equal_ = equal_ && (flags_.empty() || flags_.front() == flag);
  known_ = known_ && (present || !trains);
  flags_.push_back(flag);
}

at::Tensor Presence::Flags(const at::TensorOptions& options) const {
  const auto count = static_cast<int64_t>(flags_.size());
  if (equal_ && count > 0) return at::full({count}, flags_.front(), options);
  return at::tensor(flags_).to(options);
}

std::vector<bool> Presence::Any(const at::Tensor& sums) const {
  std::vector<bool> any(flags_.size());
  if (known_) {
    for (size_t i = 0; i < any.size(); ++i) any[i] = flags_[i] != 0;
    return any;
  }
  const at::Tensor read = sums.to(at::kCPU, at::kFloat).contiguous();
  const float* values = read.const_data_ptr<float>();
  for (size_t i = 0; i < any.size(); ++i) any[i] = values[i] != 0;
  return any;
}

}  // namespace moonshard
