// OptimizerAdapter: reads and sets the state of an optimizer for training checkpoints: the state of each parameter and
// the options of each parameter group, by name. AdapterOf returns the adapters of LibTorch's optimizers. For any other
// optimizer, the host application implements an adapter and sets TrainingState::adapter.
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
  // By name ("exp_avg"): a tensor with the local shape of the parameter, which is saved with the placement of the
  // parameter; or a tensor of 0 dims, equal on every rank. Other shapes are an error (kNotSupported).
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

  // Returns the kind of optimizer: "adamw". A checkpoint can be loaded only by an adapter of the kind that saved it.
  virtual std::string kind() const = 0;
  // Returns the parameters of each group, which are the tensors of the model.
  virtual std::vector<std::vector<at::Tensor>> Groups() const = 0;
  // Returns the options of a group ("lr"), equal on every rank.
  virtual JsonValue::Object OptionsOf(size_t group) const = 0;
  // Returns the reasons why this optimizer cannot resume from `record`, which was saved from an optimizer of the same
  // kind: kBadManifest for an option or a value that is missing, unknown, of another type or out of range, and for a
  // missing tensor that a step needs. The path of a diagnostic is the parameter, or the group as "optimizer.groups[0]".
  // Changes nothing; a load calls CheckRecord before the load changes anything. The default implementation returns
  // nothing.
  virtual Diagnostics CheckRecord(const OptimizerRecord& record) const;
  // Sets the options of a group to those that OptionsOf returned when the checkpoint was saved. Errors: kBadManifest,
  // as for CheckRecord; the options are then unchanged.
  virtual Diagnostics SetOptions(size_t group, const JsonValue::Object& options) = 0;
  // Returns the state of a parameter; nullopt if the optimizer has no state for it yet. The tensors share the
  // optimizer's memory: the caller copies them before the next step.
  virtual std::optional<ParameterMemory> MemoryOf(const at::Tensor& parameter) const = 0;
  // Replaces the state of a parameter; nullopt removes the state. The tensors are on the parameter's device, and the
  // optimizer keeps them. Errors: kBadManifest, as for CheckRecord; the state is then unchanged.
  virtual Diagnostics SetMemory(const at::Tensor& parameter, std::optional<ParameterMemory> memory) = 0;
};

// Returns the adapter of an Adam, AdamW, SGD, Adagrad or RMSprop optimizer. `optimizer` must outlive the adapter.
// Errors: kNotSupported for any other optimizer, also for a class that is derived from one of these classes, because a
// derived class may have additional state.
Result<std::unique_ptr<OptimizerAdapter>> AdapterOf(torch::optim::Optimizer& optimizer);

}  // namespace moonshard
