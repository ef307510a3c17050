// Shared moves: siblings that ask for the same move of the same tensor (q, k, v; gate, up) get one result. Their
// partial gradients then add up locally and one collective runs each way.
//
// A result is kept in the frame of the call that encloses the siblings, and is given again while
//   - the move is the same (TensorMove::SameAs) and the tensor is the same object, with the same version,
//   - gradients, inference mode and the tensor's requires_grad are as they were,
//   - nobody wrote into the result.
// It is dropped after `uses` hits in all (where the moves say so), when its tensor dies, and with the frame, so nothing
// that was gathered outlives the call. A frame ends by an exception too.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/runtime/redistribute/call_frame.h"
#include "engine/runtime/redistribute/redistribute.h"

namespace moonshard {

// move(tensor), or what a sibling got for it in the current frame. Without a frame, for a move that changes nothing,
// and for one with uses() == 1 it is move(tensor). A hit costs tens of nanoseconds.
at::Tensor RunShared(const TensorRedistribution& move, const at::Tensor& tensor);

// The results of one frame.
class SharedRedistributions {
 public:
  at::Tensor Run(const TensorRedistribution& move, const at::Tensor& tensor);
  size_t kept() const { return entries_.size(); }

 private:
  struct Entry {
    TensorRedistribution move;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // weak: an address alone may have been used again
    int64_t version;
    uint8_t mode;  // ModeOf
    at::Tensor result;
    int64_t result_version;
    int uses_left;  // below 0: not known
  };

  std::vector<Entry> entries_;
};

}  // namespace moonshard
