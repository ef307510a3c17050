// BackwardEnd: runs actions once when the outermost backward ends, however many nested ones (recomputation) run inside
// it.
//
// Autograd offers a callback at the end of a graph task, which must be requested from within the task and is dropped if
// the task ends by an exception. So every hook and node that runs in a backward calls Schedule; the first call of an
// outermost backward counts.
// Stage before: none. Stage after: GradientSum and fsdp, which finish their work there.
#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

namespace moonshard {

class BackwardEnd {
 public:
  BackwardEnd();
  ~BackwardEnd();
  BackwardEnd(const BackwardEnd&) = delete;
  BackwardEnd& operator=(const BackwardEnd&) = delete;

  // `start` runs at the first Schedule of a backward (to drop what one that threw left behind), `end` when it ends, in
  // the order of Add; either may be empty. An exception from an action skips those after it and leaves backward().
  void Add(std::function<void()> start, std::function<void()> end);

  // Call from within a backward (a hook, a node).
  void Schedule();
  // Makes a backward through `output` call Schedule. Nothing without actions, or for a tensor that needs no gradient.
  void Watch(const at::Tensor& output);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace moonshard
