// BackwardEnd: runs actions once when the outermost backward ends, whatever nested ones (recomputation) happen inside it.
//
// Autograd has a callback for the end of a graph task only, asked for from within it, and drops it when the task ends by
// an exception. So whoever learns that a backward is under way calls Schedule; the first call of the outermost backward
// counts. Stage before: none. Stage after: GradientSum and fsdp, which finish their work there.
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

  // `start` runs at the first Schedule of a backward (there may be things left of one that threw), `end` when it ends, in
  // the order of adding; either may be empty. An exception from one ends the others and is that of backward().
  void Add(std::function<void()> start, std::function<void()> end);

  // Call from within a backward (a hook, a node).
  void Schedule();
  // A backward through `output` calls Schedule by itself. Nothing without actions, or for what needs no gradient.
  void Watch(const at::Tensor& output);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace moonshard
