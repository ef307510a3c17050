// SharedRedistributions: siblings that redistribute the same tensor in the same way (q, k, v; gate, up) share one
// result. Autograd adds their gradients locally, so one collective runs in each direction.
//
// A result is cached in the frame of the call that encloses the siblings. The cached result is returned while
//   - the redistribution is the same (TensorRedistribution::SameAs), and the tensor is the same object with the same
//     version,
//   - grad mode, inference mode and the tensor's requires_grad are the same,
//   - the result was not written to.
// The cached result is dropped after `uses` uses (if TensorRedistribution::uses is known), when its input is destroyed,
// and when the frame ends, also by an exception. So no gathered tensor outlives the call.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/redistribute/call_frame.h"
#include "engine/runtime/redistribute/redistribute.h"

namespace moonshard {

// Returns redistribution(tensor), or the cached result of a sibling in the current frame. Nothing is cached without a
// frame, for an identity, and for a redistribution with uses() == 1. A cached result costs tens of nanoseconds.
at::Tensor RunShared(const TensorRedistribution& redistribution, const at::Tensor& tensor);

// The results of one frame. Owns each result until it was used `uses` times, its input is destroyed, or the frame ends.
class SharedRedistributions {
 public:
  at::Tensor Run(const TensorRedistribution& redistribution, const at::Tensor& tensor);
  size_t kept() const { return entries_.size(); }  // number of cached results

 private:
  struct Entry {
    TensorRedistribution redistribution;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // weak: another tensor may get the address of a destroyed one
    int64_t version;
    uint8_t mode;  // bits: grad mode, inference mode, requires_grad
    at::Tensor result;
    int64_t result_version;
    int uses_left;  // below 0: unknown; kept until the input is destroyed or the frame ends
  };

  std::vector<Entry> entries_;
};

}  // namespace moonshard
