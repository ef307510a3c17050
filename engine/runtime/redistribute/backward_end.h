// BackwardEnd: runs actions once when the outermost backward ends, even if nested backwards (recomputation) run inside
// this backward.
//
// Autograd runs a callback at the end of a graph task if the callback was registered from within the task, and drops
// the callback if an exception ends the task. So every hook and node that runs in a backward calls Schedule; only the
// first call in an outermost backward has an effect.
// Stage after: GradientSum and fsdp, which finish their work at the end of a backward.
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

  // Adds a pair of actions; either may be empty. `start` runs at the first Schedule of a backward (to drop the state
  // that an earlier backward left behind if an exception ended it), `end` when the backward ends. Actions run in the
  // order of Add. An exception from an action skips the later actions and propagates out of backward().
  void Add(std::function<void()> start, std::function<void()> end);

  // Call it from within a backward (from a hook or a node).
  void Schedule();
  // Makes a backward through `output` call Schedule. Does nothing if there are no actions, or if `output` needs no
  // gradient.
  void Watch(const at::Tensor& output);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace moonshard
