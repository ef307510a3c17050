// SavedState: what a save takes from the model and the optimizer of a TrainingState. The same on every rank: the names,
// dtypes, full shapes and placements of the tensors, and the options and numbers of the optimizer. Different on each
// rank: its shards of the tensors. A rank with an empty shard of a parameter may have no optimizer state for the
// parameter while other ranks do, so the ranks agree on the optimizer state that is saved (Settle). Part of
// training_checkpoints.h.
// Stages after: LayOut (checkpoint/lay_out.h), step_writer.h.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"
#include "engine/io/checkpoint/lay_out.h"
#include "engine/io/checkpoint/training_record.h"
#include "engine/runtime/apply/applied_plan.h"
#include "engine/train/training_state/optimizer_adapter.h"

namespace moonshard {

// The optimizer of a TrainingState, as an adapter.
struct OptimizerOf {
  std::unique_ptr<OptimizerAdapter> own;
  OptimizerAdapter* adapter = nullptr;  // nullptr: none
};

// Returns kNotSupported for each parameter that does not hold this rank's shard, because it is gathered during a step
// or is on the meta device.
Diagnostics CheckBetweenSteps(const AppliedPlan& model);

class SavedState {
 public:
  // `optimizer` may be null. Errors: kNotSupported (an optimizer parameter that the model does not have or that is
  // listed twice, optimizer state that has neither the parameter's local shape nor 0 dims, a dtype that safetensors
  // does not have, a number that is not finite, and CheckBetweenSteps).
  static Result<SavedState> Of(const AppliedPlan& model, const OptimizerAdapter* optimizer);

  // The description of this rank's optimizer state that Settle needs from every rank: names, dtypes and numbers,
  // without tensors; small. Null without an optimizer.
  const JsonValue& declared() const { return declared_; }
  // Determines, from the descriptions of all ranks in rank order, which optimizer state is saved. Throws PlanError:
  // kRanksDisagree.
  static JsonValue Settle(const AppliedPlan& model, const std::vector<JsonValue>& declared);

  struct Tensors {
    // Parameters and buffers in the order of the model, named by their paths, then the optimizer's state.
    std::vector<PlacedTensor> placed;
    // shards[i] is this rank's shard of placed[i]. It shares the memory of the model or the optimizer. Only two kinds
    // of optimizer state are new tensors: numbers, and empty shards of state that this rank's optimizer does not have.
    std::vector<at::Tensor> shards;
  };
  // Returns the tensors to save; `settled` is the result of Settle.
  Tensors TensorsOf(const JsonValue& settled) const;
  // Returns the record of the optimizer for the manifest; nullopt without an optimizer.
  static std::optional<OptimizerRecord> RecordOf(const AppliedPlan& model, const JsonValue& settled);

 private:
  explicit SavedState(const AppliedPlan& model) : model_(&model) {}
  void AddOptimizer(const OptimizerAdapter& optimizer, Diagnostics& errors);
  JsonValue KindOf(const LiveParameter& parameter, const ParameterMemory& memory, Diagnostics& errors) const;

  const AppliedPlan* model_;
  std::map<size_t, ParameterMemory> memories_;  // by index into the model's parameters
  JsonValue declared_;
};

}  // namespace moonshard
