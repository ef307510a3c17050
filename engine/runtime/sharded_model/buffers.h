// Buffers: one value for the buffers that ranks computed apart. Under data parallelism each rank updates the running
// statistics of a BatchNorm from its own rows, and no step makes them equal again. Training does not read them;
// evaluation, full states and checkpoints do. DataParallel::buffers of the plan says what the one value is; without a
// data-parallel section it is kFirst. This does not synchronise a BatchNorm: each rank still normalises with the
// statistics of its rows.
//   kFirst   the value of the rank with coordinate 0 along every axis that does not shard the buffer
//   kMean    the mean over those ranks, computed in float64, of floating-point buffers; of others the value of kFirst
//   kRefuse  none: buffers that differ are an error
#pragma once

#include <cstddef>
#include <map>

#include <ATen/core/Tensor.h>

#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// Returns a value, by index into AppliedPlan::parameters(), for each buffer whose bytes differ between ranks along an
// axis that does not shard it: this rank's shard, a copy on the CPU with the dtype of the buffer, the same on all ranks
// that hold this shard. The same buffers on every rank; empty if none differs. The model is not changed. FullState has
// these values, and so have checkpoints. Under kRefuse throws PlanError with one kRanksDisagree for each buffer that
// differs, on every rank.
//
// Collective over the axes that the plan uses: for a model with buffers, one all-gather of a hash per buffer and one
// all-reduce of a number per buffer along each axis; more only if a buffer differs.
std::map<size_t, at::Tensor> SettledBuffers(const AppliedPlan& model);

// Writes the values of SettledBuffers, whose errors it has, into the buffers of the model, as for an evaluation that
// all ranks share. Call it between steps. Collective, as SettledBuffers.
void SyncBuffers(AppliedPlan& model);

}  // namespace moonshard
