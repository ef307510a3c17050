#include "engine/runtime/redistribute/backward_end.h"

#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>

namespace moonshard {

struct BackwardEnd::State : std::enable_shared_from_this<BackwardEnd::State> {
  struct Action {
    std::function<void()> start;
    std::function<void()> end;
  };
  // Lives in the callback of one graph task: gone when that task ended, also by an exception, without running it.
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
      // Pending until all have run: an action may ask again for what it is part of. The token ends it if one throws.
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
