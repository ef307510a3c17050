// SharedRedistributions: siblings that redistribute the same tensor in the same way (q, k, v; gate, up) share one
// result. Autograd adds their gradients locally, so one collective runs in each direction.
//
// A result is cached in the frame of the call that encloses the siblings, and returned again while
//   - the redistribution is the same (TensorRedistribution::SameAs) and the tensor is the same object, of the same
//     version,
//   - grad mode, inference mode and the tensor's requires_grad are the same,
//   - the result was not written to.
// It is dropped after `uses` uses (where the redistribution has that number), when its input dies, and with the frame,
// whether that ends normally or by an exception: nothing that was gathered outlives the call.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/redistribute/call_frame.h"
#include "engine/runtime/redistribute/redistribute.h"

namespace moonshard {

// redistribution(tensor), or the cached result of a sibling in the current frame. Without a frame, for an identity and
// for one with uses() == 1 nothing is cached. A hit costs tens of nanoseconds.
at::Tensor RunShared(const TensorRedistribution& redistribution, const at::Tensor& tensor);

// The results of one frame. Owns them until they are used up, their input dies or the frame ends.
class SharedRedistributions {
 public:
  at::Tensor Run(const TensorRedistribution& redistribution, const at::Tensor& tensor);
  size_t kept() const { return entries_.size(); }

 private:
  struct Entry {
    TensorRedistribution redistribution;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // weak: a raw address may belong to a newer tensor
    int64_t version;
    uint8_t mode;  // ModeOf
    at::Tensor result;
    int64_t result_version;
    int uses_left;  // below 0: unknown, kept until the input dies or the frame ends
  };

  std::vector<Entry> entries_;
};

}  // namespace moonshard
