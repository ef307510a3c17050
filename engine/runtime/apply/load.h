// Load: fills a sharded model from a checkpoint, reading this rank's shards and no other bytes.
#pragma once

#include "engine/io/safetensors/checkpoint.h"
#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// Every parameter from the tensor of its path, or of one it is tied to; buffers where the checkpoint has them. A tensor
// of another dtype is converted. Returns warnings: tensors of the checkpoint that the model does not have.
// Throws PlanError, all errors at once and before a parameter is touched: kMissingTensor, kTensorMismatch (another
// shape); and while reading what PieceReader reports.
Diagnostics LoadCheckpoint(AppliedPlan& model, const Checkpoint& checkpoint);

}  // namespace moonshard
