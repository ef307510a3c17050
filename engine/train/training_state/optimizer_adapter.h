// OptimizerAdapter: an optimizer's state for each parameter and the options of its groups, under names, for a training
// checkpoint. LibTorch's own optimizers have adapters here; a host with an optimizer of its own
// writes one and puts it into TrainingState::adapter.
// Stage after: training_checkpoints.h.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"
#include "engine/io/checkpoint/training_record.h"

namespace torch::optim {
class Optimizer;
}

namespace moonshard {

// An optimizer's state for one parameter.
struct ParameterMemory {
  // By name ("exp_avg"): a tensor with the shape that the parameter has on this rank, which is sharded and merged as
  // the parameter is; or one of no dims, equal on every rank. Others are refused (kNotSupported).
  std::map<std::string, at::Tensor> tensors;
  // By name ("step"): booleans, integers, finite numbers or texts, equal on every rank.
  JsonValue::Object values;
};

class OptimizerAdapter {
 public:
  virtual ~OptimizerAdapter() = default;
  OptimizerAdapter() = default;
  OptimizerAdapter(const OptimizerAdapter&) = delete;
  OptimizerAdapter& operator=(const OptimizerAdapter&) = delete;

  // "adamw": a checkpoint is read by an adapter of the kind that wrote it.
  virtual std::string kind() const = 0;
  // The parameters (the model's own tensors) by group.
  virtual std::vector<std::vector<at::Tensor>> Groups() const = 0;
  // A group's options ("lr"), equal on every rank.
  virtual JsonValue::Object OptionsOf(size_t group) const = 0;
  // Why this optimizer cannot go on from what a checkpoint of its kind recorded: kBadManifest, an option or a value
  // that is missing, of another kind or out of its range, a tensor that a step would need. `path` names the parameter,
  // or the group as "optimizer.groups[0]". Changes nothing, and is called before anything is changed. Not overridden:
  // nothing.
  virtual Diagnostics CheckRecord(const OptimizerRecord& record) const;
  // `options` are what OptionsOf returned when the checkpoint was saved. Errors, which leave the options as they were:
  // kBadManifest, as of CheckRecord.
  virtual Diagnostics SetOptions(size_t group, const JsonValue::Object& options) = 0;
  // Nothing where the optimizer has no state for the parameter yet. Handles: copied before the optimizer steps again.
  virtual std::optional<ParameterMemory> MemoryOf(const at::Tensor& parameter) const = 0;
  // Replaces the state; tensors are on the parameter's device and belong to the optimizer from here on. Nothing: drops
  // the state. Errors, which leave the state as it was: kBadManifest, as of CheckRecord.
  virtual Diagnostics SetMemory(const at::Tensor& parameter, std::optional<ParameterMemory> memory) = 0;
};

// For Adam, AdamW, SGD, Adagrad and RMSprop. `optimizer` outlives the adapter. Errors: kNotSupported for any other,
// also one derived from these, which may remember more.
Result<std::unique_ptr<OptimizerAdapter>> AdapterOf(torch::optim::Optimizer& optimizer);

}  // namespace moonshard
