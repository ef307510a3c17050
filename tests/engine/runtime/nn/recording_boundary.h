// A Boundary for tests: writes down what it is shown and lets the test replace tensors.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <vector>

#include "engine/runtime/nn/boundary.h"

namespace moonshard {

class RecordingBoundary : public Boundary {
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

  std::unique_ptr<Call> Enter(std::span<const TensorSlot> slots) override {
    ++entered;
    Apply(slots, on_argument, arguments);
    return std::make_unique<CountedCall>(*this);
  }
  void Leave(Call& call, std::span<const TensorSlot> slots) override {
    ++left;
    right_call = right_call && dynamic_cast<CountedCall*>(&call) != nullptr && destroyed < entered;
    Apply(slots, on_result, results);
  }
  bool right_call = true;

 private:
  struct CountedCall : Call {
    explicit CountedCall(RecordingBoundary& owner) : owner(owner) {}
    ~CountedCall() override { ++owner.destroyed; }
    RecordingBoundary& owner;
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

inline std::shared_ptr<RecordingBoundary> Record(Hookable& module) {
  auto boundary = std::make_shared<RecordingBoundary>();
  module.SetBoundary(boundary);
  return boundary;
}

}  // namespace moonshard
