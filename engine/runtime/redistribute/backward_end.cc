#include "engine/runtime/redistribute/backward_end.h"

#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>

namespace moonshard {

// Which backward is the outermost one? Engine::queue_callback attaches to the current graph task, and a nested backward
// has a task of its own, whose callbacks run when that task ends, too early. The first Schedule of a backward comes
// from Watch's hook on an output of the model (or from a parameter used behind it), which runs in the outer task before
// anything is recomputed. From then on `pending` holds, and Schedule in nested tasks does nothing.
//
// `pending` is a weak reference to a token that only the queued callback owns. When a task ends by an exception the
// engine destroys its callbacks without running them; the token dies, and the next backward schedules anew. A flag
// would stay set.
struct BackwardEnd::State : std::enable_shared_from_this<BackwardEnd::State> {
  struct Action {
    std::function<void()> start;
    std::function<void()> end;
  };
  // Owned by the callback of one graph task.
  struct Pending {};

  std::vector<Action> actions;
  std::weak_ptr<Pending> pending;

  void Schedule() {
    if (!pending.expired()) return;
    auto token = std::make_shared<Pending>();
    pending = token;
    for (const Action& action : actions) {
      if (action.start) action.start();
    }
    torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this(), token] {
      const std::shared_ptr<State> state = weak.lock();
      if (!state) return;
      // Pending until all have run: an action may itself call Schedule. If one throws, the token dies with the
      // callback.
      for (const Action& action : state->actions) {
        if (action.end) action.end();
      }
      state->pending.reset();
    });
  }
};

BackwardEnd::BackwardEnd() : state_(std::make_shared<State>()) {}
BackwardEnd::~BackwardEnd() = default;

void BackwardEnd::Add(std::function<void()> start, std::function<void()> end) {
  state_->actions.push_back({std::move(start), std::move(end)});
}

void BackwardEnd::Schedule() { state_->Schedule(); }

void BackwardEnd::Watch(const at::Tensor& output) {
  if (state_->actions.empty() || !output.defined() || !output.requires_grad()) return;
  output.register_hook([weak = std::weak_ptr<State>(state_)](const at::Tensor&) {
    if (const std::shared_ptr<State> state = weak.lock()) state->Schedule();
  });
}

}  // namespace moonshard
