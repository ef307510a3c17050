// Verbs: the verbs that need tensors. Each throws PlanError for errors that a user can fix, and otherwise returns the
// exit code.
#pragma once

#include "dsl/commands/cli/options.h"

namespace moonshard {

// Runs one rank of an evaluation: makes the reference architecture or the program without storage, shards it, loads
// this rank's shards and runs a step. Rank 0 writes the results.
int RunEval(const EvalVerb& verb);
// Runs one rank of a verification: the same step sharded and, on every rank, unsharded; compares each planned module's
// output and each parameter's gradient. If the router chooses different experts for a token in the two runs
// (routing.h), the unsharded run uses the experts of the sharded run. The full model must fit on one rank.
int RunVerify(const VerifyVerb& verb);
// Proves the layouts of a step, operator by operator, for one rank of a mesh, without other ranks. No weights are read.
int RunVerifyTypes(const VerifyVerb& verb);
// Runs one rank of the same step sharded and unsharded, and compares the results of every operator.
int RunVerifyOps(const VerifyVerb& verb);
// Prints the memory and the floating-point operations of one rank in a training step, from a step on the meta device.
int RunExplainMemory(const ExplainVerb& verb);
// Prints a line for each tensor of the expected file: the largest absolute difference, relative to the largest absolute
// expected value.
int RunCompare(const CompareVerb& verb);
// Prints versions and devices, and of a launch of several ranks whether and how fast they reach each other, with what
// to set if they do not. Rank 0 prints; another rank only why it does not reach rank 0.
int RunDoctor(const DoctorVerb& verb);

}  // namespace moonshard
