// FullOutputs: gathers the outputs of a sharded model that leave as shards, for the loss and the output file.
// Stage before: a forward. Stage after: step.h, eval.cc.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/commands/run/step.h"

namespace moonshard {

// Uses its own AxisGroup (over the same process group), so that these collectives are not counted as collectives of the
// step. Each rank must gather the same outputs in the same order.
class FullOutputs {
 public:
  // `model` must outlive this. Throws PlanError (kNoSuchRedistribution) for an output in a layout that cannot be
  // gathered.
  explicit FullOutputs(const ShardedModel& model);

  // Whether the plan leaves this output sharded.
  bool moves(std::string_view output) const { return moves_.contains(output); }
  // Returns the full output; differentiable.
  at::Tensor operator()(std::string_view output, at::Tensor local) const;
  // Returns every output of a program in full. Throws PlanError (kNotSupported) for an output that does not have the
  // shape of the model without a plan: a shard in a layout that the graph does not tell (Program::OutputLayouts).
  ProgramOutputs operator()(const ProgramOutputs& local) const;

 private:
  std::map<std::string, std::vector<TensorRedistribution>, std::less<>> moves_;  // in the order in which they run
  std::shared_ptr<AxisGroup> group_;                                             // of tp; null on one rank
};

}  // namespace moonshard
