// State: parameters and buffers of a sharded model by name, as shards or as full tensors; GatherFull also gathers
// gradients and optimizer state. LoadFullState reads the result of FullState, and LoadCheckpoint reads the files of
// SaveState (load.h).
#pragma once

#include <map>
#include <string>

#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// Returns this rank's shards of parameters and buffers by path, tied parameters under their first path. The tensors are
// handles, not copies.
std::map<std::string, at::Tensor> LocalState(const AppliedPlan& model);

// Returns the full tensors of parameters and buffers by path, as copies on the CPU: the same tensors on every rank. A
// buffer whose values differ between ranks that hold it, such as a running statistic of each rank's own rows, has the
// value of the first rank (buffers.h). The parameters of ranks that drifted apart are not made
// equal (FindDrift, replicas.h), nor are the models of ApplyOptions::independent_replicas. Collective. For a model that
// does not fit on one rank, gather one parameter at a time with GatherFull.
std::map<std::string, at::Tensor> FullState(const AppliedPlan& model);

// Returns the full tensor of `shard`, on the CPU of every rank. `shard` has the placement of `parameter`: it is the
// parameter itself, its gradient, or an optimizer state. Collective over every axis that the plan uses, and counted in
// counts(). An undefined shard counts as zeros; the result is undefined if the shard is undefined on every rank. A
// tensor that the plan does not shard is this rank's own, which may differ between ranks (buffers.h).
at::Tensor GatherFull(const AppliedPlan& model, const LiveParameter& parameter, const at::Tensor& shard);

// Writes tensors to one safetensors file, under their names. The file is complete or absent. Not collective: FullState
// gives every rank the same tensors, and one rank writes them. `metadata` becomes the file's __metadata__. Throws
// PlanError: kWriteFailed; kNotSupported for a tensor that no checkpoint can contain (a quantized tensor, a tensor on
// the meta device).
void SaveState(const std::string& path, const std::map<std::string, at::Tensor>& state,
               const std::map<std::string, std::string>& metadata = {});

}  // namespace moonshard
