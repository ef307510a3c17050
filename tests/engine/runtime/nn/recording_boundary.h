// A step for tests: writes down what it is shown and lets the test replace tensors.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <vector>

#include "engine/runtime/nn/boundary.h"

namespace moonshard {

class RecordingStep : public BoundaryStep {
 public:
  struct Seen {
    size_t position;
    bool defined;
    bool operator==(const Seen&) const = default;
    friend std::ostream& operator<<(std::ostream& out, const Seen& seen) {
      return out << seen.position << (seen.defined ? "" : " (undefined)");
    }
  };

  std::vector<Seen> arguments, results;
  int entered = 0, left = 0, destroyed = 0;
  std::map<size_t, std::function<at::Tensor(const at::Tensor&)>> on_argument, on_result;

  std::unique_ptr<State> Enter(std::span<const TensorSlot> slots) override {
    ++entered;
    Apply(slots, on_argument, arguments);
    return std::make_unique<CountedCall>(*this);
  }
  void Leave(State* state, std::span<const TensorSlot> slots) override {
    ++left;
    right_call = right_call && dynamic_cast<CountedCall*>(state) != nullptr && destroyed < entered;
    Apply(slots, on_result, results);
  }
  bool right_call = true;

 private:
  struct CountedCall : State {
    explicit CountedCall(RecordingStep& owner) : owner(owner) {}
    ~CountedCall() override { ++owner.destroyed; }
    RecordingStep& owner;
  };
  static void Apply(std::span<const TensorSlot> slots,
                    const std::map<size_t, std::function<at::Tensor(const at::Tensor&)>>& redistributions,
                    std::vector<Seen>& seen) {
    seen.clear();
    for (const TensorSlot& slot : slots) {
      seen.push_back({slot.position, slot.tensor->defined()});
      auto move = redistributions.find(slot.position);
      if (move != redistributions.end()) *slot.tensor = move->second(*slot.tensor);
    }
  }
};

inline std::shared_ptr<RecordingStep> Record(Hookable& module, const std::string& where = "") {
  auto step = std::make_shared<RecordingStep>();
  module.SetBoundary(std::make_shared<Boundary>(Boundary::Steps{{step}, {{step, 0, false}}, 0, nullptr}, 0, where));
  return step;
}

}  // namespace moonshard
