// The verbs that need tensors. Each throws PlanError for what a user can fix, and otherwise returns the exit code.
#pragma once

#include "dsl/commands/cli/options.h"

namespace moonshard {

// One rank of an evaluation: the reference architecture is made without storage, sharded, filled with this rank's
// shards and run; rank 0 writes.
int RunEval(const EvalVerb& verb);
// One rank of a verification: the same step sharded and, on every rank by itself, unsharded; each planned module's
// output and each parameter's gradient compared. A token whose router chooses other experts in the two (routing.h) has
// those of the sharded run in both. The model must fit on one rank.
int RunVerify(const VerifyVerb& verb);
// Proves the layouts of a step, operator by operator, as one rank of a mesh without peers sees it; no weights are read.
int RunVerifyTypes(const VerifyVerb& verb);
// One rank of a comparison of every operator's results with those of the same step unsharded.
int RunVerifyOps(const VerifyVerb& verb);
// What one rank holds and computes in a training step of the reference architecture, from a step on the meta device.
int RunExplainMemory(const ExplainVerb& verb);
// A line for each tensor of the expected file: its largest difference relative to its largest value.
int RunCompare(const CompareVerb& verb);
// Versions and devices.
int RunDoctor();

}  // namespace moonshard
