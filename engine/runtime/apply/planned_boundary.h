// PlannedBoundary: the plan's moves around one module's calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/plan/plan/plan.h"
#include "engine/runtime/apply/deferred_values.h"
#include "engine/runtime/apply/input_signature.h"
#include "engine/runtime/apply/shard_guard.h"
#include "engine/runtime/collective/axis_group.h"
#include "engine/runtime/nn/boundary.h"
#include "engine/runtime/random/random_streams.h"
#include "engine/runtime/redistribute/gradient_sum.h"
#include "engine/runtime/redistribute/local_experts.h"
#include "engine/runtime/redistribute/redistribute.h"

namespace moonshard {

// Sees the first tensor that leaves each planned call, in the order in which the calls end.
using OutputObserver = std::function<void(const std::string& path, const at::Tensor& output)>;

// Hears of every planned call as it runs, before the plan's moves on either side: for proving what a step does. Tensors
// may be given another type, not another value.
class CallWatcher {
 public:
  virtual ~CallWatcher() = default;
  // `module`: of the plan's tree. The arguments as they arrive.
  virtual void Entered(size_t module, std::span<const TensorSlot> arguments) = 0;
  // The results as the module's own forward made them.
  virtual void Made(size_t module, std::span<const TensorSlot> results) = 0;
  // The call is over, by an exception too.
  virtual void Left() = 0;
};

struct BoundarySteps {
  std::vector<std::optional<TensorRedistribution>> inputs;   // by argument position
  std::vector<std::optional<TensorRedistribution>> outputs;  // by place in the result
  std::optional<Route> route;                                // after those moves
  LocalExperts experts;                                      // this rank's, for the route
  std::vector<at::Tensor> late;                              // added once to the first output after its move
  bool opens_frame = false;  // planned modules are called inside: their moves are shared here
  // For outermost calls: compares the inputs between the ranks of tp (none on one), and watches over gradients that are
  // summed (none where none can be).
  std::shared_ptr<AxisGroup> group;
  std::shared_ptr<GradientSum> gradient_sum;
  std::shared_ptr<DeferredValues> values;   // looked at in outermost calls; may be null
  std::shared_ptr<const ShardGuard> guard;  // likewise
  // Which random numbers are drawn within the call, and after it until the next one; none: as before. No streams where
  // all values are whole.
  std::shared_ptr<RandomStreams> streams;
  std::optional<RandomStream> inside;
  std::optional<RandomStream> behind;
  InputSignature signature = {{}, {}};       // of those inputs
  std::string path;                          // of the module, for errors
  std::shared_ptr<OutputObserver> observer;  // shared by all boundaries of a plan; empty where nobody looks
  size_t module = 0;                         // of the plan's tree
  std::shared_ptr<CallWatcher*> watcher;     // likewise shared; null where nobody watches
};

class PlannedBoundary final : public Boundary {
 public:
  explicit PlannedBoundary(BoundarySteps steps);
  std::unique_ptr<Call> Enter(std::span<const TensorSlot> arguments) override;
  void Leave(Call& call, std::span<const TensorSlot> results) override;

 private:
  void KeepLocalExperts(std::span<const TensorSlot> slots) const;

  BoundarySteps steps_;
  CollectiveLabel label_;
};

}  // namespace moonshard
