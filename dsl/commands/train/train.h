// RunTrain: the verb `train`. It uses only the public API (`#include <moonshard/moonshard.h>`), so it is also an
// example for C++ training programs. train.cc has the training loop; setup.h makes the mesh, data, model and optimizer.
#pragma once

#include "dsl/commands/cli/options.h"

namespace moonshard {

// Runs one rank of a training run. Returns the exit code: 0, kExitFailed if the log could not be written, or 128 plus
// the number of the signal that stopped the run. Throws PlanError for errors that a user can fix.
int RunTrain(const TrainVerb& verb);

}  // namespace moonshard
