// State: parameters and gradients of a sharded model under their names, as shards or full. What LoadFullState and
// LoadCheckpoint (load.h) take is what FullState and SaveState make.
#pragma once

#include <map>
#include <string>

#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// This rank's shards by parameter path, tied parameters under their first path; handles, not copies. Buffers included.
std::map<std::string, at::Tensor> LocalState(const AppliedPlan& model);

// The full tensors by parameter path on every rank; collective. They are copies on the CPU. For a model that does not
// fit on one rank, take one parameter at a time with GatherFull.
std::map<std::string, at::Tensor> FullState(const AppliedPlan& model);

// The full tensor of `shard`, which is placed as `parameter` is (the parameter itself, its gradient, an optimizer's
// moment), on the CPU of every rank. Collective over every axis that the plan uses, and counted in counts(). An
// undefined shard counts as zeros, and the result is undefined where it is undefined on every rank.
at::Tensor GatherFull(const AppliedPlan& model, const LiveParameter& parameter, const at::Tensor& shard);

// Writes tensors as one safetensors file, under their names; the file is complete or absent. Not collective: FullState
// gives every rank the same tensors, and one of them writes. `metadata` becomes the file's __metadata__.
// Throws PlanError: kWriteFailed; kNotSupported for a tensor that no checkpoint can hold (a quantized one, one on the
// meta device).
void SaveState(const std::string& path, const std::map<std::string, at::Tensor>& state,
               const std::map<std::string, std::string>& metadata = {});

}  // namespace moonshard
