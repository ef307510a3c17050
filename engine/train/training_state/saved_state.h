// What of a TrainingState goes into a checkpoint: tensors by name, dtype, whole shape and placement, the same on every
// rank, and this rank's shards of them. Ranks whose shard of a parameter is empty may remember nothing of it where others
// do; so what an optimizer remembers is settled by all ranks together.
// Part of training_checkpoints.h. Stages after: LayOut (checkpoint/lay_out.h), step_writer.h.
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

// The optimizer of a state, by whichever way it was given.
struct OptimizerOf {
  std::unique_ptr<OptimizerAdapter> own;
  OptimizerAdapter* adapter = nullptr;  // nullptr: none
};

// Whether every parameter holds this rank's shard: kNotSupported for those that are gathered, as within a step.
Diagnostics CheckBetweenSteps(const AppliedPlan& model);

class SavedState {
 public:
  // `optimizer` may be null. Errors: kNotSupported (a parameter of the optimizer that the model does not have, a memory
  // that is neither as the parameter nor one number, a dtype that no file can hold, a number that is not finite, and
  // CheckBetweenSteps).
  static Result<SavedState> Of(const AppliedPlan& model, const OptimizerAdapter* optimizer);

  // What this rank remembers, for Settle: small.
  const JsonValue& told() const { return told_; }
  // From what all ranks told, by rank, what is saved. Throws PlanError: kRanksDisagree.
  static JsonValue Settle(const AppliedPlan& model, const std::vector<JsonValue>& told);

  struct Tensors {
    std::vector<PlacedTensor> placed;  // parameters and buffers by path, then what the optimizer remembers
    std::vector<at::Tensor> shards;    // this rank's, parallel; not copied
  };
  Tensors TensorsOf(const JsonValue& settled) const;
  static std::optional<OptimizerRecord> RecordOf(const AppliedPlan& model, const JsonValue& settled);

 private:
  explicit SavedState(const AppliedPlan& model) : model_(&model) {}
  void AddOptimizer(const OptimizerAdapter& optimizer, Diagnostics& errors);
  JsonValue KindOf(const LiveParameter& parameter, const ParameterMemory& memory, Diagnostics& errors) const;

  const AppliedPlan* model_;
  std::map<size_t, ParameterMemory> memories_;  // by index into the model's parameters
  JsonValue told_;
};

}  // namespace moonshard
