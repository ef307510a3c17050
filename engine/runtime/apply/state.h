// State: parameters and gradients of a sharded model under their names, in shards or whole.
#pragma once

#include <map>
#include <string>

#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// This rank's shards by parameter path, tied parameters under their first path; handles, not copies. Buffers included.
std::map<std::string, at::Tensor> LocalState(const AppliedPlan& model);

// The whole tensors by parameter path on every rank; collective. They are copies on the CPU. For a model that does not
// fit on one rank, take one parameter at a time with GatherWhole.
std::map<std::string, at::Tensor> FullState(const AppliedPlan& model);

// The whole of `shard`, which lies as `parameter` does (the parameter itself, its gradient, an optimizer's moment), on
// the CPU of every rank. Collective over tp, and counted in counts(). An undefined shard counts as zeros, and the result
// is undefined where it is undefined on every rank.
at::Tensor GatherFull(const AppliedPlan& model, const LiveParameter& parameter, const at::Tensor& shard);

}  // namespace moonshard
